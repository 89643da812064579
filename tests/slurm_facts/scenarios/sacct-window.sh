# sacct -S, -E and -s: which jobs are in a window, and which jobs were in a state in it.
# needs: 2 nodes, root, finished jobs
. ./lib.sh; . ./lib2.sh
before=$(date +%FT%T -d '-1 second')
start good --time=5 --wrap=true
start bad --time=5 --wrap='exit 3'
start held --time=5 --hold --wrap=true
start later --time=5 --begin=now+1hour --wrap=true
start behind --time=5 --dependency=afterok:"${ID[held]}" --wrap=true
start held-array --time=5 --hold --array=1-2 --wrap=true
start running --time=5 --wrap='until [ -e go ]; do sleep 0.2; done'; wait_state "$JOB" RUNNING
start stopped --time=5 --wrap='until [ -e go ]; do sleep 0.2; done'; wait_state "$JOB" RUNNING; scancel "$JOB"
start never --time=5 --hold --wrap=true; scancel "$JOB"
start waiting --time=5 --nodelist="$NODE1,$NODE2" --exclusive --nodes=2 --wrap=true; wait_reason "$JOB" 'Resources|Priority'
wait_end "${ID[good]}" "${ID[bad]}" "${ID[stopped]}"; wait_sacct "${ID[good]}" "${ID[bad]}" "${ID[stopped]}"
has_all() { [ "$(sacct -n -X -P -j "$(all)" -o State | grep -cE 'PENDING|RUNNING|CANC')" = 8 ]; }
wait_for 20 has_all
names="$(IFS=,; echo "${!ID[*]}")"
window() { # window WORDS...   whom sacct finds
  run "$(sed "s/$before/<before>/g; s/$(all)/<all>/" <<<"$*")" bash -c 'sacct -n -X -P -o JobName,State "$@" 2>&1 | sed "s/ ([0-9T:-]*)/ (T)/g" | sort' - --name="$names" "$@"
}
window -S "$before"
window -S "$before" -E now
window -E now+1minute
for states in CD F CA PD R PD,R F,R; do
  window -S "$before" -E now -s $states
  window -S "$before" -s $states
  window -s $states
  window -s $states -E now
  window -j "$(all)" -s $states
done
window -S now -E now+2hours
window -S now+1hour
window -E now-1hour
window -j "$(all)"
window -j "$(all)" -S "$before"
window -j "$(all)" -S "$before" -s F
window -j "$(all)" -S now
window -j "$(all)" -E now-1hour
window -j "$(all)" -E now+1minute -s PD,R
field "begins later" "${ID[later]}" JobState Reason
touch go; scancel "${ID[held-array]}" "${ID[later]}"; scontrol release "${ID[held]}"
wait_end "${ID[held]}" "${ID[behind]}" "${ID[running]}" "${ID[waiting]}"
wait_sacct "${ID[held]}" "${ID[behind]}" "${ID[running]}" "${ID[waiting]}"
sleep 1.1; over=$(date +%FT%T); sleep 1.1
for states in CD PD R; do window -S "$before" -E "$over" -s $states; done
window -S "$over" -E now
window -S "$before"
