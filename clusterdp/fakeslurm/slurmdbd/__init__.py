"""Accounting: what is known of jobs after they are gone. It runs in the controller's process.

accounting   a row for each attempt of a job, which sacct prints
history      history.jsonl: the events, for people and tests
append_file  a file that grows line by line, on a disk that may be full
"""
