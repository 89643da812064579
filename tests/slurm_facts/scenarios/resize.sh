# scontrol update NumNodes: of a job that waits (and NumTasks that stays), and of one that runs, which may only shrink.
# needs: 4 nodes, root, alone
. ./lib.sh; . ./lib2.sh
sizes() { # sizes LABEL
  field "$1: scontrol" "$JOB" NumNodes NumCPUs NumTasks JobState Reason
  run "$1: TRES" bash -c "scontrol show job $JOB | grep -E '^ *(Req|Alloc)?TRES=' | sed -E 's/ //g; s/,(mem|billing)=[^,]*//g'"
  rows "$1: squeue" '%D %C %T %r' "$JOB"
}
cat >job.sh <<'J'
#!/bin/bash
touch ready.$SLURM_JOB_NAME; until [ -e go.$SLURM_JOB_NAME ]; do sleep 0.2; done
echo "nodes=$SLURM_JOB_NUM_NODES tasks=$SLURM_NTASKS"
srun bash -c 'echo $SLURM_NNODES $SLURM_NTASKS' 2>&1 | sort | uniq -c | tr -s ' '
srun -N 2 -n 2 bash -c 'echo $SLURM_NNODES $SLURM_NTASKS' 2>&1 | sort | uniq -c | tr -s ' '
J
# A job of four nodes that is asked to do with less while it waits
start block --exclusive --nodes=1 --time=60 --wrap='until [ -e go.block ]; do sleep 0.2; done'; wait_state "$JOB" RUNNING
start waits --time=5 --nodes=4 --ntasks-per-node=2 job.sh; wait_reason "$JOB" Resources; sizes "waits"
run "fewer" scontrol update JobId="$JOB" NumNodes=1-2; wait_reason "$JOB" BadConstraints; sizes "fewer"
run "fewer tasks" scontrol update JobId="$JOB" NumTasks=4; wait_for 30 [ -e ready.waits ]; sizes "fewer tasks"
touch go.waits; wait_end "$JOB"; run "waits: output" cat waits.out
start one --time=5 --nodes=4 --ntasks-per-node=2 job.sh; wait_reason "$JOB" Resources
run "a single node" scontrol update JobId="$JOB" NumNodes=1; wait_state "$JOB" RUNNING; sizes "a single node"
scancel "$JOB"; wait_end "$JOB"
start range --time=5 --nodes=4-4 --ntasks-per-node=2 job.sh; wait_reason "$JOB" Resources
run "a range with both" scontrol update JobId="$JOB" NumNodes=2-4 NumTasks=4; wait_for 30 [ -e ready.range ]; sizes "a range with both"
touch go.range; wait_end "$JOB"; run "range: output" cat range.out
touch go.block; wait_end "${ID[block]}"
# A job that runs gives nodes back at once, and gets no more. A number of nodes also sets NumTasks, which is fixed then.
up() { run "$1" scontrol update JobId="$JOB" NumNodes="$2"; sizes "$1"; }
start shrinks --time=5 --nodes=2-4 --ntasks-per-node=2 job.sh; wait_for 20 [ -e ready.shrinks ]; sizes "four"
up "as many" 4; up "three" 3; up "below its least" 1; up "a range" 2-3; up "its least" 2
run "nodes" bash -c "squeue -h -j $JOB -o %N; sinfo -h -p main -t idle -o %D"
run "files" bash -c "ls slurm_job_* 2>/dev/null"
up "none" 0; up "more" 3
touch go.shrinks; wait_end "$JOB"; run "shrinks: output" cat shrinks.out
start without-tasks --time=5 --nodes=4 job.sh; wait_for 20 [ -e ready.without-tasks ]
up "of four: four" 4; up "of four: three" 3; up "of four: two" 2; up "of four: three again" 3
run "requeue" scontrol requeue "$JOB"; wait_reason "$JOB" BeginTime; sizes "requeued"; scancel "$JOB"; wait_end "$JOB"
account "accounting" "${ID[shrinks]}"
