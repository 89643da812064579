"""The files that an attempt writes besides checkpoints, and its output."""
