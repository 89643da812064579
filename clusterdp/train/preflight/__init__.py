"""The check of each node before the ranks start (`launch.preflight`): `python -m clusterdp.train.preflight RUN_DIR`.

It prints lines, which the batch script reads (clusterdp/batch/check_nodes.py):

    preflight NODE ok SECONDS
    preflight NODE failed REASON
    preflight NODE says WORDS     about what is slow, but works

own_checks  what a node finds out by itself: devices, memory, the run folder
meeting     what the nodes find out together: who is there, clocks, an all-reduce
"""
