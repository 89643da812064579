# The batch host of a --no-kill job is set DOWN: the job, the step of its ranks, and small steps beside them, a task of which
# asks for a requeue.
# needs: 4 nodes, root, finished jobs
. ./lib.sh; . ./lib2.sh
echo 8 >.facts/tolerance
trap 'scontrol update NodeName=$NODE2 State=RESUME 2>/dev/null; touch stop' EXIT
start lost --no-kill --exclude="$NODE1" no-kill-batch-host.sbatch
for step in ranks beside kept; do for rank in 0 1 2; do wait_note "lost attempt 0 $step $rank ready"; done; done
field "scontrol before" "$JOB" JobState NumNodes NodeList BatchHost Requeue
zero
run "set DOWN" scontrol update NodeName="$NODE2" State=DOWN "Reason=broken fan"
wait_for 20 bash -c "! squeue -h -s -j $JOB -o '%i' | grep -qE '\.[01]$'"
field "scontrol after" "$JOB" JobState Reason NumNodes NodeList BatchHost Restarts
rows "squeue" '%j|%T|%D|%N|%r' "$JOB"
if is_state "$JOB" RUNNING; then # until 22.05 the job has failed instead
  run "squeue -s" bash -c "squeue -h -s -j $JOB -o '%i|%N' | grep -v batch"
  touch requeue; wait_state "$JOB" PENDING
  field "scontrol of the requeued job" "$JOB" JobState Reason NumNodes NodeList Restarts
  sleep 2; scontrol update JobId="$JOB" ExcNodeList="$NODE2"; start_now "$JOB"
  wait_note "lost attempt 1 ranks 2 ready" 60
fi
touch stop; wait_end "$JOB"
wait_sacct "$JOB"
# whether accounting has a row RESIZING, and with how many nodes the next row is, is chance
run "sacct --duplicates" bash -c "sacct -n -X -D -P -j $JOB -o JobName,State,ExitCode | grep -v RESIZING"
