"""Copies the submit directory for a run, whose attempts all run the copy, and records the run's source.

code_snapshot     the copy of the submit directory that every attempt runs
copied_files      the files of the copy: links to an earlier run's files if nothing has changed
source_record     the source of a run: commit, packages, user
batch_copy        the copy of the batch program in the run folder
"""
