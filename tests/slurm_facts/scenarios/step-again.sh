# A step ends early (a task fails; scancel), and the next step starts on the same nodes: after how long, and what is left of the first.
# needs: 2 nodes
. ./lib.sh; . ./lib2.sh
start again step-again.sbatch
for part in fails obeys cancelled overlaps; do wait_note "again step after $part: task 1 ready" 60; done
wait_end "$JOB"
account "sacct" "$JOB"
for part in fails obeys cancelled overlaps; do run "$part: output of srun" bash -c "grep 'srun: error: .*task' out.$part | sort"; done
