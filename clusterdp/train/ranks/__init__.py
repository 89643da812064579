"""The ranks of a job: where they meet, what they agree on, and how they stop together.

rendezvous    where the ranks meet, and the number of each
group         the process group, the device, the seeds
rank          this process among its peers
stop          which signals this rank has seen; imports no torch
shared_flags  flags that all ranks know at the same step
peers         ends all ranks when one fails
store_notes   authenticated messages through the job's store
claim         which attempt owns the run folder
"""
