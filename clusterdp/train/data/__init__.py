"""From a data set to the batches of one rank, with a position that can be saved.

make_loader       the loader of job.loader()
loader_defaults   defaults for a DataLoader's options, and its errors in one line
datasets          the data that a user passes to the Trainer
sampler           which samples, in which order, from where on
resumable_loader  a DataLoader that knows how much of its epoch is done
seeded            augmentations that depend on sample and epoch alone
dealt_out         whether each rank trains on all samples
streams           the global random streams: seeded, put aside and put back
batch_mark        whether a batch that is read again is the one that it was
loader_identity   whether a loader is the one of the checkpoint
tensor_loader     batches of data in tensors
shards            samples in many files, each read by one rank
prefetch          batches on the device before they are needed
even_batches      the same number of batches on every rank
"""
