# A --no-kill job loses a node that is not its batch host: its script's variables are stale; which second steps start.
# needs: 4 nodes, root, finished jobs
. ./lib.sh; . ./lib2.sh
echo 4 >.facts/tolerance
trap 'scontrol update NodeName=$NODE3 State=RESUME 2>/dev/null; touch stop' EXIT
start second --no-kill --nodelist="$NODE1,$NODE3,$NODE4" no-kill-second-step.sbatch
for rank in 0 1 2; do wait_note "second attempt 0 task $rank ready"; done
zero
run "set DOWN" scontrol update NodeName="$NODE3" State=DOWN "Reason=broken fan"
wait_note "second steps are done" 150
field "scontrol" "$JOB" JobState Reason NumNodes NumCPUs NodeList BatchHost Restarts
rows "squeue" '%j|%T|%D|%N|%R' "$JOB"
touch stop; wait_end "$JOB"
wait_sacct "$JOB"
# whether accounting has a row RESIZING, and with how many nodes the next row is, is chance
run "sacct" bash -c "sacct -n -X -P -j $JOB -o JobName,State,ExitCode | grep -v RESIZING"
for part in variables stale fewer named overlap reversed arbitrary; do run "$part" cat out.$part; done
