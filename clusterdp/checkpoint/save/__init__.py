"""From the live objects to a committed checkpoint.

state_snapshot  the state of all ranks at one moment
replica_check   a check that all ranks still have the same state
save            one save, from the copy to the commit
writer          one rank's files
sharded         the pieces of FSDP2's tensors, as torch.distributed.checkpoint plans them
memory_copies   commits in the memory of the nodes
partners        a second place of a copy's files, in the memory of another node
commit          the work of rank 0: the manifest last, then retention
mirror          commits in a local folder, copied to a store when the store can be reached
"""
