"""The loop over batches that restores, saves and stops a training.

loop           the loop
batches        the batches of a loader, from the position of the training on
position       that position, as state
save_schedule  when to save, and what happens when a save fails
phases         the loops of one job, each with a position and a state of its own
history        a row an epoch, over all attempts
graph_watch    notices a loss that is kept with its graph
"""
