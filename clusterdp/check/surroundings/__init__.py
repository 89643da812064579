"""The job's surroundings: folders, disks, files, interpreters.

storage_room   whether the run folder can be written, is shared, and has room
ignored_files  files that the job needs and the snapshot leaves out
probe          what is tried: the shell's variables, the interpreter, a file to the store and to the run folder
"""
