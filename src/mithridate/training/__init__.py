"""Many models trained at once, private or not; with `features` the only code that uses torch.

One direction: `randomness`, `initialisation` and `sampling` draw. `batch_source` says which examples are in a batch:
Poisson samples of all of them (`config.TrainConfig`), or passes over what an instance sees (`plain_config`: a part, a
bootstrap sample, noisy labels or inputs). `network` (fast) or `general` (anything else) turns a batch into clipped
gradient sums, to which the `config.GradientRule` adds noise or none; `optimisers` applies them. `engine` runs a group
of instances through all steps (`threads` on CPUs, `graphs` on GPUs), and `tally` counts their votes. `run` does that
shard by shard into a `run_directory`, here or on a cluster; `prediction` asks the models that were kept.

The fast path in turn: `conversion` makes a program of a module, `fusion` says which steps are taken together, `layers`
know gradients, norms and sums, `clipping` bounds them; C and Triton are in `kernels`.
"""
