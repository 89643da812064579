"""The controller's process: it has the jobs and nodes, and decides what becomes of them.

daemon          the process: its event loop, sockets and periodic work
connection      the daemon's end of a connection to a command or to the process of a step
controller      what becomes of jobs: submit, schedule, start, hold, signal
submit_checks   what is refused when a job is submitted
scheduler       who starts where, who is preempted, and why the others wait; without side effects
dependencies    --dependency
node_selection  which nodes a job gets, and what of each
step_layout     which nodes of its job a step gets, and how many tasks on each
step_plans      from a job or a step to the plan for its process
multi_prog      srun --multi-prog: a program for each task
stepds          the processes of all running steps: start, reports, orders, loss
job_end         how attempts end: by themselves, by scancel, at a limit
requeue         requeue, preemption, suspend, lost nodes
nodes           nodes that are drained, set down, fail and come back
timers          what is done when time has passed: limits, warnings, grace times; and `advance`
journal         the jobs and nodes on disk, for the next daemon
spool           the scripts and environments of jobs, on disk
"""
