"""The behaviour of a run from outside: the processes of its ranks, the files that they use, their output.

live_run       where a run is just now
processes      the ranks' processes, by /proc
inotify        the kernel's account of files
file_events    the calls by which its ranks change files, which can be held
save_shape     what a save does to files, by those calls
file_watch     what a run does with its checkpoints, by the kernel's account
file_versions  what a run has written, with a copy of each file
file_use       what was done to one of them
printed_steps  the steps that a program prints
warm_up        how many steps its learning rate rises at first
observer       watches an undisturbed run
facts          what it was like
"""
