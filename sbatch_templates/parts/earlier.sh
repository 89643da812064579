# How the earlier attempts of this job ended. Slurm itself requeues a job when a node fails, or when a preemption has no
# grace time. Such an attempt never reached the end of this script, so its cause is written here. Then the limits are
# checked.
has_saved() { # did that attempt save a checkpoint? On a full disk it has no file `saved`: then look at the checkpoints
  local found
  [ ! -e "$then/saved" ] || return 0
  found=$(grep -lsF "\"attempt\":\"$name\"" "$run_dir/checkpoints"/step_*/MANIFEST.*.json \
    {{ checkpoint_url }}/step_*/MANIFEST.*.json | tail -n 1)
  found=${found##*/step_} found=${found%%/*}
  case $found in "" | *[!0-9]*) return 1 ;; esac
  { echo $((10#$found)) >"$then/saved"; } 2>/dev/null || missed "attempts/$name/saved"
}
by_notice() { # sets `cause` of an attempt that has recorded none by what Slurm wrote, if it did
  local stamp=${last_notice#* CANCELLED AT }
  stamp=${stamp%%[ *]*}
  [ -n "$last_notice" ] && [[ ! $stamp < $since_stamp ]] || return 0 # it is of an attempt before
  case $last_notice in
    *'DUE TO PREEMPTION'*) cause=preempted ;;
    *'DUE TO TIME LIMIT'*) cause=timeout ;;
    *'DUE TO JOB REQUEUE'*) cause=requeued ;;
    *'DUE TO NODE FAILURE'*) cause='node-lost' ;;
  esac
}
look_back() { # the same of one that left no outcome either; notes how long it ran, and lost nodes
  local last=$then/began log
  for log in "$then"/logs/*.out "$run_dir/metrics/$name.jsonl"; do [ ! "$log" -nt "$last" ] || last=$log; done
  over_at=$(date -r "$last" +%s 2>/dev/null)
  [ "${over_at:-0}" -lt "${since_s:-0}" ] || took=$((over_at - since_s))
  { echo "- ${took:=0} $over_at" >"$then/exit"; } 2>/dev/null || missed "attempts/$name/exit"
  [ ! -e "$then/cause" ] || cause=disk # the file is there, and empty
  by_notice
  policy node-lost
  case $cause:$avoid in
    lost:yes | node-lost:yes)
      found=$(sinfo --noheader --Node --nodes="$then_nodes" --states=down,fail,no_respond,unknown --format=%N 2>/dev/null | sort -u | tr '\n' ' ')
      [ -z "$found" ] || { echo "$found" >"$then/avoid"; } 2>/dev/null
      ;;
  esac
}
ended='' attempts=0 faults=0 idle=0 spent=0 short=0 missing=0 moved=0 since=''
{% if chain %}
links=1 linked=$job # jobs of this chain, with this one
{% endif %}
while read -r name; do
  [ "$name" != "$attempt" ] || break # if there are later ones, they have replaced this one
  then=$run_dir/attempts/$name
  word='' reason='' cause='' chained='' code='' took='' over_at='' since_s='' since_stamp='' then_nodes=''
  [ ! -e "$then/chain" ] || read -r chained <"$then/chain"
  [ "$chained" = "$chain" ] || continue
{% if chain %}
  [ "${name%.*}" = "$linked" ] || links=$((links + 1)) linked=${name%.*}
{% endif %}
  [ ! -e "$then/cause" ] || read -r cause <"$then/cause"
  [ ! -e "$then/exit" ] || read -r code took over_at <"$then/exit"
  [ ! -e "$then/began" ] || read -r since_s since_stamp _ then_nodes <"$then/began"
  case $took$over_at$since_s in *[!0-9]*) took='' over_at='' since_s='' ;; esac # bash runs what it counts: a[$(command)]
  # An attempt that is taken for lost may still run on a node that was cut off. What it writes later does not count.
  [ "$cause" = lost ] || [ ! -e "$then/outcome" ] || read -r word reason _ <"$then/outcome"
  if [ -z "$cause" ]; then
    case "$word $reason" in
      'done '*) cause='done' ;;
      'stop cancelled') cause=cancelled ;;
      'stop claim' | overtaken*) cause=overtaken ;;
      stop*) cause=stopped ;;
      'requeue time') cause=timeout ;;
      requeue*) cause=preempted; by_notice ;;
      *) cause=lost; look_back ;;
    esac
    { echo "$cause" >"$then/cause"; } 2>/dev/null || missed "attempts/$name/cause"
    event requeued ",\"cause\":\"$cause\",\"of\":\"$name\""
{% if "requeue" in notify %}
    tell requeued "$cause" "$name" &
{% endif %}
  fi
  [ ! -e "$then/avoid" ] || bad="$(cat "$then/avoid") $bad"
  # What is over stays over: since 24.05 Slurm requeues a job that was preempted once when it ends, whatever its exit code.
  case $cause:$word:$reason in
    overtaken:* | *:claim) continue ;; # another attempt had taken the run: it does not count
    bad-node:*) moved=$((moved + 1)); continue ;;
    'done':* | *:'done':*)
      echo "clusterdp: attempt $name has finished this run. To run it again, submit a new run."
      over 'done' finished 0
      ;;
    cancelled:* | *:stop:cancelled)
      echo "clusterdp: attempt $name was cancelled. \`clusterdp resume $run_dir\` goes on with the run." >&2
      over cancelled cancelled 1
      ;;
    *:stop:user | stopped:: | stopped:requeue:*) # by the ranks' agreement, or when they had ended otherwise
      echo "clusterdp: attempt $name was asked to stop. \`clusterdp resume $run_dir\` goes on with the run." >&2
      over_by_user
      ;;
    stopped:* | *:stop:*)
      echo "clusterdp: attempt $name has stopped this run for good. See \`clusterdp status $run_dir\`." >&2
      over stopped failed 1 ",\"reason\":\"$reason\""
      ;;
  esac
  if is_fault "$cause" || [ "$cause" = gave-up ]; then
    # Was it the last one by its own word? Those that are tried again have `requeued` as their last event.
    said=$(tail -n 1 "$run_dir/events/$name-batch.jsonl" 2>/dev/null)
    case $said in
      *'"event":"failed"'*"\"cause\":\"$cause\""*)
        echo "clusterdp: attempt $name has ended this run ($cause). \`clusterdp resume $run_dir\` goes on with it." >&2
        said=${said#*"\"cause\":\"$cause\""}
        over "$cause" failed 1 "${said%\}}"
        ;;
    esac
  fi
  if has_saved; then idle=0 spent=0 since='' took=0; else idle=$((idle + 1)); fi
  since="$since $name" moved=0
  count "$cause" "${took:-0}"
  # Counted in a row: programs that were not found, and programs that asked for a requeue within a minute.
  case $code in 12[67]) missing=$((missing + 1)) ;; *) missing=0 ;; esac
  case $cause:$code in asked:75) [ "$took" -lt 60 ] && short=$((short + 1)) || short=0 ;; *) short=0 ;; esac
done < <(cd "$run_dir/attempts" && printf '%s\n' * | sort -t. -k1,1n -k2,2n)
