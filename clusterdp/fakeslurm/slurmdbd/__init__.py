"""Accounting: what is known of jobs after they are gone. It runs in the controller's process.

accounting   a row for each attempt of a job, which sacct prints
history      history.jsonl: the events, for people and tests
"""
