"""The behaviour of a run from outside: the processes of its ranks, the files that these processes use, and the output.

live_run       the present step and processes of a run
processes      the ranks' processes, from /proc
inotify        the kernel's events on the files below a folder
file_events    the calls by which the ranks change files, which a drill can hold
save_shape     the file operations of a save, learned from those calls
file_watch     watches the use of a run's files, by inotify
file_versions  copies of each file that a run writes, with their times
file_use       the reads, writes and renames of one file
printed_steps  the steps that a program prints
warm_up        the number of steps in which the learning rate rises at first
observer       watches an undisturbed run
facts          the properties of an undisturbed run
"""
