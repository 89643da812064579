"""The format of a checkpoint on disk. This package needs no torch, because login nodes read it."""
