"""From a data set to the batches of one rank, with a position that can be saved.

make_loader       the loader of job.loader()
loader_defaults   defaults for a DataLoader's options, and its errors in one line
datasets          the data that a user passes to the Trainer
sampler           the samples of a rank, their order, and the position
resumable_loader  a DataLoader that knows how much of its epoch is done
seeded            augmentations that depend only on sample and epoch
dealt_out         detects that each rank trains on all samples
streams           the global random streams: seeds, replaces and restores them
batch_mark        detects a change in a batch that is read again
loader_identity   compares a loader with the checkpoint's
tensor_loader     batches of data in tensors
shards            samples in many files, each read by one rank
prefetch          batches on the device before they are needed
even_batches      the same number of batches on every rank
"""
