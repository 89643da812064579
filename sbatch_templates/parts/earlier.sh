# How the earlier attempts of this job ended. Slurm itself requeues a job when a node fails, or when a preemption has no
# grace time. Such an attempt never reached the end of this script, so its cause is written here. Then the limits of
# crashes and of attempts without progress are checked.
has_saved() { # did that attempt save a checkpoint? On a full disk it has no file `saved`: then look at the checkpoints
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
  [ "$name" != "$attempt" ] || break # if there are later ones, they have replaced this one
  then=$run_dir/attempts/$name
  word='' reason='' cause='' chained='' code='' took=''
  [ ! -e "$then/chain" ] || read -r chained <"$then/chain"
  [ "$chained" = "$chain" ] || continue
  [ ! -e "$then/cause" ] || read -r cause <"$then/cause"
  [ ! -e "$then/exit" ] || read -r code took <"$then/exit"
  # An attempt that is taken for lost may still run on a node that was cut off. What it writes later does not count.
  [ "$cause" = lost ] || [ ! -e "$then/outcome" ] || read -r word reason _ <"$then/outcome"
  if [ -z "$cause" ]; then
    case "$word $reason" in
      'done '*) cause='done' ;;
      'stop cancelled') cause=cancelled ;;
      'stop claim' | overtaken*) cause=overtaken ;;
      stop*) cause=stopped ;;
      'requeue time') cause=timeout ;;
      requeue*) cause=preempted ;;
      *) cause=lost; [ ! -e "$then/cause" ] || cause=crash ;; # the file is there and empty: the disk was full
    esac
    { echo "$cause" >"$then/cause"; } 2>/dev/null || missed "attempts/$name/cause"
    event requeued ",\"cause\":\"$cause\",\"of\":\"$name\""
  fi
  # What is over stays over: since 24.05 Slurm requeues a job that was preempted once when it ends, whatever its exit code.
  case $cause:$word:$reason in
    overtaken:* | *:claim) continue ;; # another attempt had taken the run: it does not count
    'done':* | *:'done':*)
      echo "clusterdp: attempt $name has finished this run. To run it again, submit a new run."
      over 'done' finished 0
      ;;
    cancelled:* | *:stop:cancelled)
      echo "clusterdp: attempt $name was cancelled. \`clusterdp resume $run_dir\` goes on with the run." >&2
      over cancelled cancelled 1
      ;;
    *:stop:user | stopped::)
      echo "clusterdp: attempt $name was asked to stop. \`clusterdp resume $run_dir\` goes on with the run." >&2
      over_by_user
      ;;
    stopped:* | *:stop:*)
      echo "clusterdp: attempt $name has stopped this run for good. See \`clusterdp status $run_dir\`." >&2
      over stopped failed 1 ",\"reason\":\"$reason\""
      ;;
    crash:* | gave-up:*)
      # Was it the last one by its own word? Those that are tried again have `requeued` as their last event.
      said=$(tail -n 1 "$run_dir/events/$name-batch.jsonl" 2>/dev/null)
      case $said in
        *'"event":"failed"'*"\"cause\":\"$cause\""*)
          echo "clusterdp: attempt $name has ended this run ($cause). \`clusterdp resume $run_dir\` goes on with it." >&2
          said=${said#*"\"cause\":\"$cause\""}
          over "$cause" failed 1 "${said%\}}"
          ;;
      esac
      ;;
  esac
  [ "$cause" != crash ] || crashes=$((crashes + 1))
  if has_saved; then idle=0; else idle=$((idle + 1)); fi
  # Counted in a row: programs that were not found, and programs that asked for a requeue within a minute.
  case $cause:$code in crash:12[67]) missing=$((missing + 1)) ;; *) missing=0 ;; esac
  case $cause:$code in asked:75) [ "$took" -lt 60 ] && short=$((short + 1)) || short=0 ;; *) short=0 ;; esac
done < <(cd "$run_dir/attempts" && printf '%s\n' * | sort -t. -k1,1n -k2,2n)
