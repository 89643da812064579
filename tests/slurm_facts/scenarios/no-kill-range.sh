# A --no-kill job with a range of nodes loses one: what it shows, which steps start then, and what a requeue gives it.
# needs: 4 nodes, root, alone
. ./lib.sh; . ./lib2.sh
trap 'scontrol update NodeName=$NODE3 State=RESUME 2>/dev/null; touch go end' EXIT
sizes() { # sizes LABEL
  field "$1: scontrol" "$JOB" JobState NumNodes NumCPUs NumTasks NodeList
  run "$1: TRES" bash -c "scontrol show job $JOB | grep -E '^ *(Req|Alloc)?TRES=' | sed -E 's/ //g; s/,(mem|billing)=[^,]*//g'"
}
has_nodes() { [ "$(squeue -h -j "$JOB" -o %D)" = "$1" ]; }
later_than() { [ "$EPOCHSECONDS" -gt "$1" ]; } # a job that starts in the second of its requeue may have a revoked credential
cat >job.sh <<'J'
#!/bin/bash
touch ready.${SLURM_RESTART_COUNT:-0}; until [ -e go ]; do sleep 0.2; done
left=$(scontrol show job "$SLURM_JOB_ID" | grep -oE '^ +NodeList=\S+'); left=${left#*=}
[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || echo "nodes=$SLURM_JOB_NUM_NODES tasks=$SLURM_NTASKS left=$left"
step() { # step WORDS...
  timeout 20 "$@" bash -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME, $SLURM_STEP_NUM_NODES nodes: $SLURM_STEP_NODELIST"' 2>&1 |
    grep -vE 'step creation (still )?(temporarily )?disabled|Step created for|has been revoked' | sort
}
[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || {
  step srun --nodelist="$left" --overlap --nodes=3 --ntasks=6 --ntasks-per-node=2
  scontrol show hostnames "$left" | tac | sed p >hosts
  step env -u SLURM_NNODES -u SLURM_JOB_NUM_NODES -u SLURM_NTASKS_PER_NODE SLURM_HOSTFILE=hosts srun --distribution=arbitrary --overlap --ntasks=6
}
touch stepped; until [ -e end ]; do sleep 0.2; done
J
start one --time=5 --nodes=2-4 --ntasks-per-node=1 --wrap='until [ -e go ]; do sleep 0.2; done'; wait_state "$JOB" RUNNING; sizes "one task on each"
scancel "$JOB"; wait_end "$JOB"
start range --time=5 --nodes=2-4 --ntasks-per-node=2 --no-kill --open-mode=append job.sh; wait_for 20 [ -e ready.0 ]; sizes "four"
scontrol update NodeName="$NODE3" State=DRAIN "Reason=broken fan" # else it may register, and be idle again
run "set DOWN" scontrol update NodeName="$NODE3" State=DOWN "Reason=broken fan"; wait_for 30 has_nodes 3; sizes "three"
touch go; wait_for 60 [ -e stepped ]
run "requeue" scontrol requeue "$JOB"; wait_reason "$JOB" BeginTime; sizes "requeued"
run "the tasks of its least" scontrol update JobId="$JOB" NumTasks=4 # as node-ranges has it for 22.05
wait_for 5 later_than $((EPOCHSECONDS + 1)); start_now "$JOB" 2>/dev/null; wait_for 20 [ -e ready.1 ]; sizes "again"
touch end; wait_end "$JOB"; run "output" cat range.out
