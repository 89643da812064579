"""The format of a checkpoint on disk. This package needs no torch, because login nodes read it.

layout          names of files, the flat buffer of all tensors, and its cut into one slice a rank
manifest        the file whose existence is the checkpoint; list_checkpoints()
phase           a part of a run that has a state of its own
skeleton        a state without its tensors, as JSON
strides         how the elements of a tensor lie in memory
chunks          where the pieces of sharded tensors lie
checksum        the checksum of a block
strictjson      JSON, as strict as we write it
verified_reads  reads that are checked, block by block, against the checksums of the manifest
read_targets    where the data of verified blocks goes
payload         the bytes of a tensor, whether its checkpoint is flat or sharded
retention       which checkpoints are deleted, and how
"""
