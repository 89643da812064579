# What the earlier attempts of this job came to. Slurm requeues by itself when a node fails or a preemption has no grace
# time; such attempts never reached the end of this script, and get their cause here. Hence budgets are checked here.
has_saved() { # did that attempt make progress? Where there was no room for its file `saved`, by the checkpoints there
  local found
  [ ! -e "$then/saved" ] || return 0
  found=$(grep -lsF "\"attempt\":\"$name\"" "$run_dir/checkpoints"/step_*/MANIFEST.*.json \
    {{ checkpoint_url }}/step_*/MANIFEST.*.json | tail -n 1)
  found=${found##*/step_} found=${found%%/*}
  case $found in "" | *[!0-9]*) return 1 ;; esac
  { echo $((10#$found)) >"$then/saved"; } 2>/dev/null || missed "attempts/$name/saved"
}
crashes=0 idle=0 short=0 missing=0
while read -r name; do
  [ "$name" != "$attempt" ] || break # those after it, if there are, have replaced this one
  then=$run_dir/attempts/$name
  word='' reason='' cause='' chained='' code='' took=''
  [ ! -e "$then/chain" ] || read -r chained <"$then/chain"
  [ "$chained" = "$chain" ] || continue
  [ ! -e "$then/cause" ] || read -r cause <"$then/cause"
  [ ! -e "$then/exit" ] || read -r code took <"$then/exit"
  # One that was given up for lost may end later all the same, on a node that was cut off: what it says then is void.
  [ "$cause" = lost ] || [ ! -e "$then/outcome" ] || read -r word reason _ <"$then/outcome"
  if [ -z "$cause" ]; then
    case "$word $reason" in
      'done '*) cause='done' ;;
      'stop cancelled') cause=cancelled ;;
      'stop claim' | overtaken*) cause=overtaken ;;
      stop*) cause=stopped ;;
      'requeue time') cause=timeout ;;
      requeue*) cause=preempted ;;
      *) cause=lost; [ ! -e "$then/cause" ] || cause=crash ;; # the file is there, and there was no room for the word
    esac
    { echo "$cause" >"$then/cause"; } 2>/dev/null || missed "attempts/$name/cause"
    event requeued ",\"cause\":\"$cause\",\"of\":\"$name\""
  fi
  case $cause:$word:$reason in
    overtaken:* | *:claim) continue ;; # it had lost the run to another attempt, and counts for nothing
    'done':* | *:'done':*)
      # Since 24.05 Slurm requeues a job that was preempted once when it ends, whatever its exit code.
      echo "clusterdp: attempt $name has finished this run. To run it again, submit a new run."
      over 'done' finished 0
      ;;
    cancelled:* | *:stop:cancelled)
      echo "clusterdp: attempt $name was cancelled. \`clusterdp resume $run_dir\` goes on with the run." >&2
      over cancelled cancelled 1
      ;;
    stopped:* | *:stop:*)
      echo "clusterdp: attempt $name has stopped this run for good. See \`clusterdp status $run_dir\`." >&2
      over stopped failed 1 ",\"reason\":\"$reason\""
      ;;
  esac
  [ "$cause" != crash ] || crashes=$((crashes + 1))
  if has_saved; then idle=0; else idle=$((idle + 1)); fi
  # In a row: programs that were not found, and programs that asked to be requeued within a minute.
  case $cause:$code in crash:12[67]) missing=$((missing + 1)) ;; *) missing=0 ;; esac
  case $cause:$code in asked:75) [ "$took" -lt 60 ] && short=$((short + 1)) || short=0 ;; *) short=0 ;; esac
done < <(cd "$run_dir/attempts" && printf '%s\n' * | sort -t. -k1,1n -k2,2n)
