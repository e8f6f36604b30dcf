"""Many private models trained at once; with `models` the only code that uses torch.

One direction: `randomness` and `sampling` draw, `network` (fast) or `general` (anything else) turns a batch into
clipped gradient sums, `optimisers` applies them, `engine` runs a group of instances through all steps and counts their
votes, `training` does that shard by shard into a `run_directory`, `prediction` reads the models that were kept.
"""
