"""The drills: what is done to a run, and the proof that it was done.

scene        a run on a cluster, as a drill waits for a moment in it and breaks it
strikes      kills at the moments of a save
stops        preemptions and time limits
losses       ranks that die or hang, and nodes that fail
saves        a checkpoint that is damaged, a disk that is full
table        all of them, in the order in which they are shown
"""
