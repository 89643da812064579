"""The files that an attempt writes besides checkpoints, and its output.

attempt_record  events, metrics, times, the step of the newest checkpoint
metric_log      numbers of steps, without waiting for the GPU
sinks           the same to TensorBoard, W&B and MLflow
progress        the line on the terminal
say             a line in the log
best_effort     writing to a disk that may be full
"""
