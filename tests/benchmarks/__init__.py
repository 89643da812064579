"""Measurements beside what one would write by hand, both in one run, as ratios. No tests: CI does not time anything.

`python -m tests.benchmarks.startup`, `python -m tests.benchmarks.first_allreduce`, ...; or all of them by `make bench`.
"""
