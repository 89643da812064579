"""From a data set to the batches of one rank, with a position that can be saved.

make_loader      the loader of job.loader()
loader_defaults  defaults for a DataLoader's options, and its errors in one line
datasets         the data that a user passes to the Trainer
sampler          which samples, in which order, from where on
seeded           augmentations that depend on sample and epoch alone
loader_rng       separate random streams for a loader
loader_identity  whether a loader is the one of the checkpoint
tensor_loader    batches of data in tensors
shards           samples in many files, each read by one rank
shard_loader     batches of shards
prefetch         batches on the device before they are needed
even_batches     the same number of batches on every rank
"""
