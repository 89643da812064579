"""The state of a training: objects, tensors, random number generators; and the ranks that hold it.

tree             nested state taken apart into JSON and tensors, and put together again
stateful         taking state from modules, optimizers, ..., and putting it back
as_built         changes of the objects since the program built them
plain_holders    plain dicts and tensors in a state
parameter_names  the names of the parameters in an optimizer's groups, and their order
module_buffers   the buffers of modules, which may differ between ranks and change their size
rng              the random number generators of a rank
generators       the random number generators that a user's object keeps
machine          the GPU and the libraries of a rank, on which the bits depend
rank_group       the ranks that save and restore together, and how they agree
same_plan        methods of torch.distributed.checkpoint's readers and writers that do nothing here
buffer           a large piece of memory in huge pages
"""
