"""A model on many devices.

strategy                  ddp, fsdp, hsdp or dp, as configured
ddp                       DistributedDataParallel: options, communication hooks, errors
gradient_mean             the mean of gradients without a forward pass through DDP
powersgd                  the communication hook with a state
fsdp                      FSDP2, and its hybrid form
model_parallel            a model over several devices of one rank
same_model                checks that all ranks have built the same model
syncbn                    BatchNorm over the batches of all ranks
activation_checkpointing  activations that are recomputed, not kept
"""
