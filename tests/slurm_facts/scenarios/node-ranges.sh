# --nodes as a range or a list: what a job gets, what a waiting one shows, requeues larger and smaller, what is refused.
# needs: 4 nodes, alone, few nodes
. ./lib.sh; . ./lib2.sh
cat >job.sh <<'J'
#!/bin/bash
env | grep -E '^SLURM_(JOB_)?(NUM_NODES|NNODES|NTASKS|NPROCS|TASKS_PER_NODE|NTASKS_PER_NODE|CPUS_PER_TASK|CPUS_ON_NODE|CPUS_PER_NODE)=' | sort
echo "tasks of srun: $(srun -Q bash -c 'echo $SLURM_NTASKS' | sort | uniq -c | tr -s ' ')"
echo "given words: $(srun -Q -N "$SLURM_JOB_NUM_NODES" -n "$((SLURM_JOB_NUM_NODES * 2))" bash -c 'echo $SLURM_NTASKS' | sort | uniq -c | tr -s ' ')"
touch ready.$SLURM_JOB_NAME.${SLURM_RESTART_COUNT:-0}; until [ -e go.$SLURM_JOB_NAME ]; do sleep 0.2; done
J
sizes() { # sizes LABEL [JOB]   how large the job is, in each form in which Slurm tells it
  field "$1: scontrol" "${2:-$JOB}" NumNodes NumCPUs NumTasks
  run "$1: TRES" bash -c "scontrol show job ${2:-$JOB} | grep -E '^ *(Req|Alloc)?TRES=' | sed -E 's/ //g; s/,(mem|billing)=[^,]*//g'"
  rows "$1: squeue" '%D %C %T %r' "${2:-$JOB}"
}
given() { # given NAME SBATCH-WORDS...   start it, look at it and at what it saw, and end it
  start "$1" --time=5 --ntasks-per-node=2 "${@:2}" job.sh
  [ "$RC" = 0 ] || return # a release without lists
  wait_for 20 [ -e "ready.$1.0" ]; sizes "$1"
  touch "go.$1"; wait_end "$JOB"; run "$1: output" cat "$1.out"
}
block() { # block NAME NODES   a job that holds so many whole nodes, until go.NAME
  start "$1" --exclusive --nodes="$2" --time=60 --wrap="until [ -e go.$1 ]; do sleep 0.2; done"; wait_state "$JOB" RUNNING
}
given range --nodes=2-4
given list --nodes=1,2,4
given least --nodes=2-4 --use-min-nodes
given more-than-there-are --nodes=2-9
given cpus --nodes=2-3 --cpus-per-task=2
block one 1
given range-of-three --nodes=2-4
given list-of-three --nodes=1,2,4
given list-of-ranges --nodes=1-2,4
# A requeued job may have more nodes, or fewer.
start grows --time=5 --ntasks-per-node=2 --nodes=2-4 --open-mode=append job.sh; wait_for 20 [ -e ready.grows.0 ]
touch go.one; wait_end "${ID[one]}"
later_than() { [ "$EPOCHSECONDS" -gt "$1" ]; } # a job that starts in the second of its requeue may have a revoked credential
run "requeue" scontrol requeue "$JOB"; wait_reason "$JOB" BeginTime; sizes "requeued"; wait_for 5 later_than $((EPOCHSECONDS + 1))
start_now "$JOB"; wait_for 20 [ -e ready.grows.1 ]; sizes "larger"
run "hold" scontrol requeuehold "$JOB"; wait_reason "$JOB" 'job.requeued.in.held.state'; sizes "held"; wait_for 5 later_than $((EPOCHSECONDS + 1))
block two 2; JOB=${ID[grows]}
run "the tasks of its least" scontrol update JobId="$JOB" NumTasks=4 # 22.05 has those of its last nodes, and waits for as many
sizes "the tasks of its least"
scontrol release "$JOB"; wait_for 30 has_begun "$JOB"; wait_for 30 [ -e ready.grows.2 ]; sizes "smaller"
touch go.grows; wait_end "$JOB"; run "grows: output" cat grows.out
block three 2
start waits --time=5 --ntasks-per-node=2 --nodes=2-4 job.sh; wait_reason "$JOB" Resources; sizes "waits"
scancel "$JOB"; wait_end "$JOB"
start waits-list --time=5 --ntasks-per-node=2 --nodes=1,2,4 job.sh
[ "$RC" != 0 ] || { wait_reason "$JOB" Resources; sizes "waits-list"; }
start waits-held --time=5 --ntasks-per-node=2 --nodes=2-4 --hold job.sh; sizes "waits-held"
run "a list for a waiting job" scontrol update JobId="$JOB" NumNodes=2,4; sizes "a list for a waiting job"
# shellcheck disable=SC2206 # without the ids of refused jobs, which are empty
jobs=(${jobs[*]}); scancel "${jobs[@]}"; wait_end "${jobs[@]}"
for nodes in 4-2 2, ,2 2-x 4,2 2,2-3 2-4:2 -2 2--4 '2 4' 99-100; do
  run "refused or not: $nodes" bash -c "sbatch --parsable --hold --nodes='$nodes' --wrap=true 2>&1 | sed -E 's/^[0-9]+\$/accepted/'"
  JOB=$(squeue -h -t PD -o %i | head -1)
  if [ -n "$JOB" ]; then field "$nodes: scontrol" "$JOB" NumNodes; scancel "$JOB"; wait_end "$JOB"; fi
done
account "accounting" "${ID[range]}" "${ID[list]}" "${ID[least]}" "${ID[grows]}"
