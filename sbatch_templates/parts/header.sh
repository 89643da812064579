#   1 environment   what the ranks find in their environment
#   2 step          the srun command that starts the ranks
#   3 hand-over     a Python program in the run folder, batch/, becomes this process. It decides whether this attempt
#                   may start, runs the step, and decides whether the job is requeued when that has ended. Start reading
#                   at batch/batch/main.py. It needs Python 3.6 on the first node, and nothing else.
# It asks Slurm's controller once at its start (squeue), and at a failure and its end (scontrol show job); for nodes
# (sinfo) at a failure, and if some are avoided. A silent controller is asked for half an hour, at most once a minute.
{% for line in requeues %}
# {{ line }}
{% endfor %}
