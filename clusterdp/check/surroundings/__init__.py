"""Checks of the job's surroundings: folders, disks, files and interpreters.

storage_room   whether the run folder is writable, is shared, and has room
ignored_files  files that the job needs, but that are not in the snapshot
probe          tests on this machine: the shell's variables, the interpreter, a file in the store and beside the run
"""
