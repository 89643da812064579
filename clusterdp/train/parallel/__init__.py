"""A model on many devices.

strategy                  ddp, fsdp, hsdp or dp, as the config has it
ddp                       DistributedDataParallel: options, communication hooks, errors
powersgd                  the communication hook that has a state
fsdp                      FSDP2, and its hybrid form
model_parallel            a model over several devices of one rank
same_model                whether all ranks have built the same model
syncbn                    BatchNorm over the batches of all ranks
activation_checkpointing  activations that are computed again, not kept
"""
