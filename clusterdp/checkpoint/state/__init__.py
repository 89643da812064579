"""The state of a training: objects, tensors, random numbers; and the ranks that hold it.

tree             nested state taken apart into JSON and tensors, and put together again
stateful         what is taken from modules, optimizers, ..., and how it is put back
as_built         what the program had built before training changed it
plain_holders    dicts and tensors that are in a state as they are
parameter_names  the names of the parameters in an optimizer's groups, and their order
module_buffers   the buffers of modules, which may differ between ranks and change their size
rng              the random number generators of a rank
rank_group       the ranks that save and restore together, and how they agree
same_plan        what torch.distributed.checkpoint asks of a reader or writer where nothing is to be done
buffer           a large piece of memory in huge pages
"""
