"""The copy of the submit directory that every attempt runs, and the record of what a run was made from.

code_snapshot     the copy of the submit directory that every attempt runs
copied_files      its files: links to those of an earlier run where nothing has changed
source_record     what a run was made from: commit, packages, by whom
batch_copy        the copy of the batch program in the run folder
"""
