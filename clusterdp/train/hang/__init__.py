"""The hang watch: notices that the ranks make no progress, and reports which of them is behind.

    page          where this rank is, in memory that its watcher reads
    hang_watch    starts and ends the watcher of this rank
    watcher       the process that watches one rank
    watched_rank  that rank as the watcher sees it
    silence       what the watcher does when its rank is silent
    note          what a watcher knows of its silent rank

All but page and hang_watch run in the watcher: one small process for each rank, without torch. It sees a rank that is
stopped, or that holds the interpreter's lock in C for ever, as no thread of that rank could. While all
goes well it looks at one page of memory, and nothing goes over the network or to the run folder.
"""
