# sacct -S, -E and -s: which jobs are in a window, and which jobs were in a state in it.
# needs: 2 nodes, root, finished jobs
. ./lib.sh; . ./lib2.sh
before=$(date +%FT%T -d '-1 second')
start w-good --time=5 --wrap=true
start w-bad --time=5 --wrap='exit 3'
start w-held --time=5 --hold --wrap=true
start w-later --time=5 --begin=now+1hour --wrap=true
start w-behind --time=5 --dependency=afterok:"${ID[w-held]}" --wrap=true
start w-held-array --time=5 --hold --array=1-2 --wrap=true
start w-running --time=5 --wrap='until [ -e go ]; do sleep 0.2; done'; wait_state "$JOB" RUNNING
start w-stopped --time=5 --wrap='until [ -e go ]; do sleep 0.2; done'; wait_state "$JOB" RUNNING; scancel "$JOB"
start w-never --time=5 --hold --wrap=true; scancel "$JOB"
start w-waiting --time=5 --nodelist="$NODE1,$NODE2" --exclusive --nodes=2 --wrap=true; wait_reason "$JOB" 'Resources|Priority'
wait_end "${ID[w-good]}" "${ID[w-bad]}" "${ID[w-stopped]}"; wait_sacct "${ID[w-good]}" "${ID[w-bad]}" "${ID[w-stopped]}"
has_all() { [ "$(sacct -n -X -P -j "$(all)" -o State | grep -cE 'PENDING|RUNNING|CANC')" = 8 ]; }
wait_for 20 has_all
names="$(IFS=,; echo "${!ID[*]}")"
window() { # window WORDS...   whom sacct finds
  run "$(sed "s/$before/<before>/g; s/${over:-none}/<over>/g; s/$(all)/<all>/" <<<"$*")" bash -c 'sacct -n -X -P -o JobName,State "$@" 2>&1 | sed "s/ ([0-9T:-]*)/ (T)/g" | sort' - --name="$names" "$@"
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
field "begins later" "${ID[w-later]}" JobState Reason
touch go; scancel "${ID[w-held-array]}" "${ID[w-later]}"; scontrol release "${ID[w-held]}"
wait_end "${ID[w-held]}" "${ID[w-behind]}" "${ID[w-running]}" "${ID[w-waiting]}"
wait_sacct "${ID[w-held]}" "${ID[w-behind]}" "${ID[w-running]}" "${ID[w-waiting]}"
sleep 1.1; over=$(date +%FT%T); sleep 1.1
for states in CD PD R; do window -S "$before" -E "$over" -s $states; done
window -S "$over" -E now
window -S "$before"
