"""From the live objects to a committed checkpoint.

state_snapshot  the state of all ranks at one moment
replica_check   whether all ranks still have the same state
save            one save, from the copy to the commit
writer          one rank's files
sharded         the pieces of FSDP2's tensors, as torch.distributed.checkpoint plans them
commit          what rank 0 does: the manifest last, retention after it
mirror          checkpoints committed nearby, and copied to a store when it can be reached
"""
