"""`clusterdp checkpoint`: checkpoints for people, on a login node.

place             which checkpoints the user means
ls                `checkpoint ls`
verify            `checkpoint verify`
diff              `checkpoint diff`
export            `checkpoint export`
prune             `checkpoint prune`
read_progress     how far a long read is, on a terminal
"""
