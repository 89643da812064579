"""Accounting, which runs in the controller's process, and keeps jobs that the controller has deleted.

accounting   one row for each attempt of a job, which sacct prints
history      history.jsonl: the events, for people and tests
"""
