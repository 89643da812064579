"""The Trainer: a whole training in one object.

trainer       fit, evaluate, predict, summary
train_step    the functions that handle a batch
dev_run       one batch, to find errors
evaluation    each sample once, with the bare module
scores        the loss and the metrics of an epoch
metric_names  accuracy, mse and others by name
meters        means, sums and extremes over all ranks
callbacks     functions and objects that the Trainer calls; early stopping, the best model, plateau
best_model    the model of the best epoch
predictions   the outputs of all ranks, in the order of the data
summary       the model as a table
"""
