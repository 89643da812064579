"""The check of each node before the ranks start (`launch.preflight`): `python -m clusterdp.train.preflight RUN_DIR`.

The check prints lines, which the batch script reads (clusterdp/batch/act/check_nodes.py):

    preflight NODE ok SECONDS
    preflight NODE failed REASON
    preflight NODE says WORDS     a warning about a slow part that works
"""
