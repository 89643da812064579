"""`clusterdp checkpoint`: checkpoints for people, on a login node, where torch is not loaded.

where       which checkpoints the user means
ls  verify  diff  export  prune        the verbs
safetensors_file  torch_file           what export writes
progress    a bar, if somebody looks
"""
