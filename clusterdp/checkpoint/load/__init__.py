"""From a checkpoint, or from another program's files, into the objects.

choose           the checkpoint to restore: the newest good one
restore          all ranks read one checkpoint, and put it into their objects
flat_reader      the flat buffer as tensors, read once and exchanged between ranks
resharding       state that is sharded differently than at the save
import_foreign   a start from another program's checkpoint
foreign_formats  files of torch.save() and torch.distributed.checkpoint, read without running their code
torch_file       a checkpoint written as a file of torch.save()
difference       the size of the difference between two tensors
"""
