"""The controller's process, which has all jobs and nodes and decides which job runs where.

daemon          the process: its event loop, sockets and periodic work
connection      the daemon's end of a connection to a command or a slurmstepd
controller      the changes of jobs: submit, schedule, start, hold, signal
submit_checks   the refusals at submission
scheduler       decides which jobs start where, which are preempted, and why the others wait; without side effects
dependencies    --dependency
node_selection  selects the nodes of a job, and the CPUs and GPUs on each
step_layout     selects the nodes of a step, and the number of tasks on each
step_plans      makes the plan of a job or step for its slurmstepd
multi_prog      srun --multi-prog: a program for each task
stepds          the slurmstepds of all running steps: start, reports, orders, loss
job_end         the ends of attempts: by themselves, by scancel, at a limit
requeue         requeue, preemption, suspend, lost nodes
nodes           nodes that are drained, set down, fail and come back
timers          periodic checks of limits, warnings and grace times; and `advance`
journal         the jobs and nodes on disk, for the next daemon
spool           the scripts and environments of jobs, on disk
"""
