"""The loop over batches that restores, saves and stops a training.

loop           the loop
batches        the batches of a loader, from the position of the training on
position       the position of the training, as state
save_schedule  decides when to save, and handles failed saves
forgotten      optimizers, schedulers and generators that are in no state
phases         the loops of one job, each with a position and a state of its own
history        one row per epoch, over all attempts
graph_watch    notices a loss that is kept with its graph
"""
