"""Measurements of a step: how much time each of its parts takes.

stopwatch      the time of each part of a step, by rank
profiling      the end of a run that is measured
worker_finder  the speed of a loader with 0, 1, 2, 4, ... workers
tracer         some steps in torch.profiler
"""
