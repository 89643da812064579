"""The format of a checkpoint on disk. This package needs no torch, because login nodes read it.

layout          names of files, the flat buffer of all tensors, and its division into one slice per rank
manifest        the file whose existence is the checkpoint; list_checkpoints()
phase           a part of a run that has its own state
skeleton        a state without its tensors, as JSON
strides         the strides of tensors that are not row-major
chunks          the places of the pieces of sharded tensors
checksum        the checksum of a block
strictjson      a JSON reader that refuses duplicate keys, NaN and Infinity
verified_reads  reads that are checked, block by block, against the checksums of the manifest
read_targets    the memory that receives verified blocks
payload         the bytes of a tensor of a flat or a sharded checkpoint
retention       the choice of checkpoints to delete, and their deletion
"""
