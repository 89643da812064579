"""`clusterdp checkpoint`: commands for checkpoints on a login node.

place             the checkpoints that the user names
ls                `checkpoint ls`
verify            `checkpoint verify`
diff              `checkpoint diff`
export            `checkpoint export`
prune             `checkpoint prune`
read_progress     the progress of a long read, on a terminal
"""
