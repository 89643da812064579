# --deadline: what is refused, how the time limit is cut, when a waiting job ends.
# needs: 2 nodes, root, whole cluster, short
. ./lib.sh; . ./lib2.sh
try() { # try SBATCH-WORDS...
  submit "$*" --output=/dev/null "$@" --wrap='sleep 20'
  [ -n "$JOB" ] || return 0
  wait_for 20 bash -c "! squeue -h -t all -j $JOB -o '%T %r' | grep -qE 'PENDING (None|Priority)'"
  field "$*: scontrol" "$JOB" JobState Reason TimeLimit TimeMin; scancel "$JOB"
}
try --deadline=now+1hour --time=120
try --deadline=now+1hour --time=30
try --deadline=now+3630seconds --time=120 --time-min=10
try --deadline=now+1hour --time=120 --time-min=90
try --deadline=now+3630seconds
try --deadline=now+1hour --partition=short
try --deadline=now+30seconds
try --deadline=now+1hour --time=10 --begin=now+2hours
try --deadline=now+1hour --time=40 --begin=now+30minutes
try --deadline=now+1hour --time=40 --begin=now+10minutes
try --deadline=now-1hour
try --deadline=now+1hour --time=120 --hold
run "srun" srun --deadline=now+1hour --time=120 true
run "test-only" sbatch --deadline=now+1hour --time=120 --test-only --wrap=true
start full --nodes=4 --exclusive --time=5 --wrap='until [ -e go ]; do sleep 0.2; done'; wait_state "$JOB" RUNNING
start waits --nodes=4 --time=2 --deadline=now+1hour --wrap=true; wait_reason "$JOB" 'Resources|Priority'
run "update" scontrol update JobId="$JOB" Deadline=now+1minute
wait_state "$JOB" DEADLINE
field "updated: scontrol" "$JOB" JobState Reason TimeLimit ExitCode
touch go; wait_end "${jobs[@]}"
