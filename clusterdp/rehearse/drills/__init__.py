"""The drills: the faults that a run gets, and the proof that each fault happened.

scene        a run on a cluster, with the waits and the faults of drills
strikes      kills at the moments of a save
stops        preemptions and time limits
losses       ranks that die or hang, and nodes that fail
saves        a checkpoint that is damaged, a disk that is full
copies       copies of the state in memory, from which ranks restart, or which are damaged
table        all drills, in the order of the output
"""
