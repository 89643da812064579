"""The hang watch: notices that the ranks make no progress, and reports which rank is behind.

    page           the position of this rank, in memory that its watcher reads
    hang_watch     starts and ends the watcher of this rank
    watcher        the process that watches one rank
    watched_rank   that rank, seen from its watcher
    silence        the watcher's actions when its rank is silent
    note           a watcher's note about its silent rank
    flight_record  a dump of the flight recorder in torch's NCCL group

All modules except page and hang_watch run in the watcher: one small process for each rank, without torch. The rank
itself uses flight_record only to switch the recorder on. The watcher also notices a rank that is stopped, or that holds
the GIL in C code for ever. A thread of the rank could not notice either. While the rank makes progress, the watcher
only reads one page of memory, and uses neither the network nor the run folder.
"""
