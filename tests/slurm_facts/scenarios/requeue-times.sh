# Restarts and eligible time of the attempts of a job that was requeued, and of a job that begins later.
# needs: root, finished jobs
. ./lib.sh; . ./lib2.sh
after() { # after LABEL JOB: whether EligibleTime is later than SubmitTime by 1 to 3 minutes
  run "$1" bash -c "scontrol show job $2 | grep -oE '(SubmitTime|EligibleTime)=\S*' | cut -d= -f2 | xargs -n1 date +%s -d | paste -s | awk '{ print (\$2 - \$1 > 60 && \$2 - \$1 < 180) ? \"later\" : \$2 - \$1 < 5 ? \"at once\" : \"no\" }'"
}
start job --time=5 --wrap='until [ -e go ]; do sleep 0.2; done'; wait_state "$JOB" RUNNING
after "running" "$JOB"
scontrol requeue "$JOB"; wait_reason "$JOB" BeginTime
after "requeued" "$JOB"
wait_for 20 bash -c "[ \$(sacct -n -X -P -D -j $JOB -o State | wc -l) = 2 ]"
run "requeued: sacct" sacct -n -X -P -D -j "$JOB" -o State,Restarts
start_now "$JOB"; touch go; wait_end "$JOB"; wait_sacct "$JOB"
run "over: sacct" sacct -n -X -P -D -j "$JOB" -o State,Restarts,Planned
start later --time=5 --begin=now+2minutes --wrap=true; wait_reason "$JOB" BeginTime
after "begins later" "$JOB"
start no-limit --hold --wrap=true
wait_for 20 bash -c "[ -n \"\$(sacct -n -X -P -j $JOB -o State)\" ]"
run "no limit: sacct" sacct -n -X -P -j "$JOB" -o Timelimit,TimelimitRaw
scancel "${jobs[@]}"
