"""Accounting, which runs in the controller's process, and keeps jobs after the controller has deleted them.

accounting   one row for each attempt of a job, which sacct prints
history      history.jsonl: the events, for people and tests
"""
