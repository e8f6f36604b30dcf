"""Many private models trained at once; with `models` the only code that uses torch.

One direction: `randomness`, `initialisation` and `sampling` draw; `network` (fast) or `general` (anything else) turns a
batch into clipped gradient sums; `optimisers` applies them; `engine` runs a group of instances through all steps, and
`tally` counts their votes; `training` does that shard by shard into a `run_directory`; `prediction` reads the models
that were kept.

The fast path in turn: `conversion` makes a program of a module, `fusion` says which steps are taken together, `layers`
know gradients, norms and sums, `clipping` bounds them; `plain_ops` and `native` (C) compute on CPUs, `kernels` and
`stem` (Triton) with `graphs` on NVIDIA GPUs.
"""
