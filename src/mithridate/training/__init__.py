"""Many models trained at once, private or not; with `features` the only code that uses torch.

One direction: an `order` says what is trained and all that is said of it; `config` how instances learn, and what each
of them sees. `randomness` and `models` draw seeds and first weights. `batch_source` says which examples are in a batch:
Poisson samples of all of them, or passes over what an instance sees. `network` (fast) or `general` (anything else)
turns a batch into clipped gradient sums, to which the `config.GradientRule` adds noise or none. `engine` runs a group
of instances through all steps (`devices` has threads, graphs and optimisers) and counts their votes. `task` makes a job
of an order, and `run` does it shard by shard into a `run_directory`, here or on a cluster, and asks models that were
kept.

The fast path in turn: `conversion` makes a program of a module and says which steps are taken together, `layers` know
gradients, norms and sums, `clipping` bounds them; C and Triton are in `kernels`.
"""
