"""Accounting, which keeps jobs after the controller has deleted them. It runs in the controller's process.

accounting   one row for each attempt of a job, which sacct prints
history      history.jsonl: the events, for people and tests
"""
