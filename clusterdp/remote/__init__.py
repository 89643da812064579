"""`clusterdp --on HOST`: a cluster behind the user's own ssh. The modules run on the user's machine, except for
there.py, calls.py and received_project.py: they run on the cluster, one process for each verb."""
