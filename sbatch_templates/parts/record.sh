# What this script writes down. A full disk costs a line of the record, never the run.
missed() { echo "clusterdp: $run_dir: cannot write $1. Is its disk full, or a quota used up? Going on without." >&2; }
event() { # event NAME [JSON]   one line in this script's own file of the ledger
  local time=${EPOCHREALTIME-$(date +%s)}
  { printf '{"time":%s,"event":"%s","attempt":"%s"%s}\n' "${time/,/.}" "$1" "$attempt" "${2-}" \
    >>"$run_dir/events/$attempt-batch.jsonl"; } 2>/dev/null || missed "the event \"$1\""
}
note() { # note FILE WORDS   a file of one line in this attempt's folder
  { echo "$2" >"$here/$1"; } 2>/dev/null || missed "attempts/$attempt/$1"
}
is_replaced() { # has a later attempt written down what became of this one? Then it has the run, and this one no say
  [ -z "$requeued" ] && [ -s "$here/cause" ]
}
over() { # over CAUSE EVENT EXIT [JSON]   the last word about this attempt
  if is_replaced; then now=requeued; leave "$3"; fi
  note cause "$1"
  event "$2" ",\"cause\":\"$1\"${4-}"
  exit "$3"
}
leave() { # leave EXIT   without a last word: it is not for this attempt to say
  case $now in
    requeued) echo "clusterdp: job $job has been requeued: attempt $attempt has no more say in it." >&2 ;;
    *) event signal ",\"name\":\"ending\",\"exit\":$1" ;; # cancelled: Slurm has the last word
  esac
  exit "$1"
}
