"""The parts of an optimizer step.

amp             mixed precision: O0 to O3, and bf16
accumulation    several batches to a step
open_window     gradients that wait for a step
batch_size      what a step sees in all, and its learning rate
lr_schedule     warm-up and cosine
nan_guard       what happens to a loss that is NaN
ema             the average of the weights
"""
