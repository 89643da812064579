"""The files that an attempt writes besides checkpoints, and its output.

attempt_record  events, metrics, times, the step of the newest checkpoint
metric_log      numbers of steps, written without waiting for the GPU
sinks           the same numbers, sent to TensorBoard, W&B and MLflow
progress        the line on the terminal
say             prints a line to the log
best_effort     writes to a disk that may be full
"""
