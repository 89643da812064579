"""The parts of an optimizer step.

amp             mixed precision: O0 to O3, and bf16
accumulation    several batches per step
open_window     gradients that wait for a step
batch_size      the samples of a step, and its learning rate
lr_schedule     warm-up and cosine
nan_guard       handles a loss that is NaN
ema             a moving average of the weights
swa             the mean of the weights after epochs
"""
