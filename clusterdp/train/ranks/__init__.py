"""The ranks of a job: their meeting point, their agreements, and their common stop.

rendezvous    the ranks' meeting point, and the number of each rank
group         the process group, the device, the seeds
rank          this process among its peers
stop          the stop requests that reached this rank; imports no torch
shared_flags  flags that all ranks know at the same step
peers         ends all ranks when one fails
store_notes   authenticated messages through the job's store
claim         decides which attempt owns the run folder
"""
