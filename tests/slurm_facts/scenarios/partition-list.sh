# --partition with several partitions: where the job starts, what is shown before and after, who finds it, what is refused.
# needs: 2 nodes, root, low, short, whole cluster
. ./lib.sh; . ./lib2.sh
tells='echo $SLURM_JOB_PARTITION'
runs() { # runs NAME SBATCH-WORDS...   it says where it ran
  start "$@" --wrap="$tells; until [ -e go ]; do sleep 0.2; done"; wait_state "$JOB" RUNNING
  rows "$1" '%P|%T|%r' "$JOB"
}
runs short-too-short --partition=short,main --time=30
runs higher-tier --partition=low,main --time=5
runs higher-tier-first --partition=main,low --time=5
start held --partition=low,main --time=5 --hold --wrap="$tells"
rows "held" '%P|%T|%r' "$JOB"
field "held: scontrol" "$JOB" Partition TimeLimit
run "squeue -p low" squeue -h -p low -o '%j %P'
run "squeue -p main,low" squeue -h -p main,low -S i -j "$(list "${ID[higher-tier]}" "$JOB")" -o '%j %P'
run "scancel -p low takes no list" bash -c "scancel -p low --state=PENDING; squeue -h -j $JOB -o %T"
run "update" scontrol update JobId="$JOB" Partition=low,short,main
rows "update: after" '%P' "$JOB"
run "update: unknown" scontrol update JobId="$JOB" Partition=low,nosuch
run "release" scontrol release "$JOB"
run "unknown" sbatch --partition=low,nosuch --wrap=true
run "unknown first" sbatch --partition=nosuch,low --wrap=true
run "too many nodes in all" sbatch --partition=short,main --nodes=999 --wrap=true
run "srun" bash -c "srun --partition=low,main bash -c '$tells' 2>/dev/null"
submit "array" --partition=low,main --array=1-2 --output=array.%a --time=5 --wrap="$tells"; jobs+=("$JOB")
run "test-only" bash -c "sbatch --partition=low,main --test-only --wrap=true 2>&1 | grep -o 'in partition .*'"
touch go; wait_end "${jobs[@]}"; rm go
run "outputs" bash -c 'for name in short-too-short higher-tier higher-tier-first held; do echo $name: $(cat $name.out); done; cat array.?'
runs again --partition=low,main --time=5
run "requeue" scontrol requeue "$JOB"; wait_reason "$JOB" BeginTime
rows "requeued" '%P|%T|%r' "$JOB"
scancel "$JOB"; wait_end "$JOB"
scontrol update PartitionName=main State=DOWN
start none-up --partition=main,short --time=30 --wrap=true; wait_reason "$JOB" 'Partition.*'
rows "time limit after a partition that is down" '%P|%T|%r' "$JOB"; scancel "$JOB"
start down-last --partition=short,main --time=30 --wrap=true; wait_reason "$JOB" 'Partition.*'
rows "a partition that is down after a time limit" '%P|%T|%r' "$JOB"; scancel "$JOB"
runs other-one --partition=main,low --time=5
scontrol update PartitionName=main State=UP
touch go; wait_end "${jobs[@]}"; wait_sacct "${ID[short-too-short]}" "${ID[held]}" "${ID[other-one]}"
run "sacct" sacct -n -X -P -j "$(list "${ID[short-too-short]}" "${ID[higher-tier]}" "${ID[held]}" "${ID[other-one]}")" -o JobName,Partition,State
