"""From a checkpoint, or from another program's files, back into the objects.

choose           which checkpoint to restore: the newest good one
restore          all ranks read one checkpoint, and put it into their objects
flat_reader      the flat buffer as tensors, read once and exchanged between ranks
resharding       state of which each rank needs another part than it has saved
import_foreign   a start from what another program has saved
foreign_formats  files of torch.save() and torch.distributed.checkpoint, read without running them
torch_file       a checkpoint written as a file of torch.save()
difference       by how much two tensors differ
"""
