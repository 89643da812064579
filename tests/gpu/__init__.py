"""Tests on a GPU: `make test-gpu`. `make gpu-day` runs them with figures, each check with its own limit (day.py).

CLUSTERDP_GPU_TESTS_ON=cpu runs their code without a GPU. That proves nothing about GPUs; it keeps the code valid.
"""
