# What this script records. On a full disk a line may be lost, but never the run.
missed() { echo "clusterdp: $run_dir: cannot write $1. Is its disk full, or a quota used up? Going on without." >&2; }
event() { # event NAME [JSON]   append one line to this script's own file of the ledger
  local time=${EPOCHREALTIME-$(date +%s)}
  { printf '{"time":%s,"event":"%s","attempt":"%s"%s}\n' "${time/,/.}" "$1" "$attempt" "${2-}" \
    >>"$run_dir/events/$attempt-batch.jsonl"; } 2>/dev/null || missed "the event \"$1\""
}
note() { # note FILE WORDS   write a file of one line in this attempt's folder
  { echo "$2" >"$here/$1"; } 2>/dev/null || missed "attempts/$attempt/$1"
}
is_replaced() { # has a later attempt recorded how this one ended? Then that one has the run
  [ -z "$requeued" ] && [ -s "$here/cause" ]
}
over() { # over CAUSE EVENT EXIT [JSON]   record how this attempt ended, and exit: no other one follows
  if is_replaced; then now=requeued; leave "$3"; fi
  note cause "$1"
{% if chain %}
  new=''
  find_waiting
  [ -z "$new" ] || scancel "$new" # the next one would find the run over
{% endif %}
  event "$2" ",\"cause\":\"$1\"${4-}"
{% if notify %}
  tell "$2" "$1" "$attempt" "${4-}"
{% endif %}
  exit "$3"
}
over_by_user() { # by `clusterdp stop` or job.stop(). Not 0: a job that waits for this run to finish must not start.
  over stopped failed 75 ',"reason":"user"'
}
leave() { # leave EXIT   exit without recording an end: that is for another attempt, or for Slurm, to say
  case $now in
    requeued) echo "clusterdp: job $job has been requeued: attempt $attempt no longer acts for it." >&2 ;;
    *) event signal ",\"name\":\"ending\",\"exit\":$1" ;; # cancelled: Slurm's record says so
  esac
  exit "$1"
}
