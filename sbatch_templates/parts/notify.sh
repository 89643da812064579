# notify: tell people of an end, a failure, a requeue or a hang. It takes 10 s at most, and changes nothing for the job.
{% if webhook_file %}
escaped() { printf '%s' "$1" | LC_ALL=C sed 's/[\\"]/\\&/g'; }
as_json() { # print the text as a string of JSON. Slack takes what stands between < and > for markup, unless it is escaped
  local text
  text=$(printf '%s' "$1" | { iconv -c -f UTF-8 -t UTF-8 2>/dev/null || cat; } | LC_ALL=C tr '\001-\011\013-\037' ' ' |
    LC_ALL=C sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g')
  text=$(escaped "$text")
  text=${text//$'\n'/\\n}
  printf '"%s"' "$text"
}
post() { # post TEXT   The address is a secret: curl gets it on its standard input, for a list of processes shows words
  local url='' said code
  read -r url 2>/dev/null <{{ webhook_file }}
  url=${url%$'\r'}
  said=$(printf 'url = "%s"\ndata-binary = "%s"\n' "$(escaped "$url")" "$(escaped "{\"text\": $(as_json "$1")}")" |
    curl --silent --output /dev/null --write-out '%{http_code}' --header 'Content-Type: application/json' --config - 2>/dev/null)
  code=$?
  case ${url:+read}:$code:$said in
    read:0:2??) ;;
    :*) echo "clusterdp: notify.webhook_file: cannot be read on $HOSTNAME. Put it where the nodes see it." >&2 ;;
    *:127:*) echo "clusterdp: notify: there is no curl on $HOSTNAME. Load it in launch.setup, or use notify.command." >&2 ;;
    *:0:*) echo "clusterdp: notify: the webhook answers with HTTP status $said. Is its address still right?" >&2 ;;
    *) echo "clusterdp: notify: the webhook was not reached from $HOSTNAME: exit code $code of curl." >&2 ;;
  esac
}
{% else %}
post() { # post TEXT
  local code
  printf '%s\n' "$1" | exec {% for word in notify_command %}{{ word }} {% endfor %}

  code=$?
  [ "$code" = 0 ] || echo "clusterdp: notify.command: ended with exit code $code." >&2
}
{% endif %}
send() { # send TEXT   in a process group of its own, which is killed when the time is up. (macOS has no timeout)
  local told timer
  set -m
  post "$1" &
  told=$!
  { sleep 10; kill -KILL -- -$told; } >/dev/null 2>&1 &
  timer=$!
  wait $told 2>/dev/null || echo "clusterdp: notify: ended, for it took longer than 10 s." >&2
  event told # its time is the attempt's, too
  kill -KILL -- -$timer 2>/dev/null
}
detail() { # print what the ledger has of an end under that key
  local rest=${details#*\""$1"\":}
  case $rest in
    "$details") ;;
    \"*) rest=${rest#\"}; printf '%s' "${rest%%\"*}" ;;
    *) printf '%s' "${rest%%[,\}]*}" ;;
  esac
}
describe() { # describe CAUSE ATTEMPT   sets `what`, with `at`, a step, and `see`, the verb that says more
  local why error cause
  why=$(detail reason) error=$(detail error) at=$(detail step) see=status
  [ "$2" != "$attempt" ] || at=${at:-${step-}}
  [ "${at:-0}" != 0 ] || at=''
  while read -r cause what; do [ "$cause" != "$1" ] || break; done <<'END_OF_CAUSES'
{% for cause in causes %}
{{ cause }}
{% endfor %}
END_OF_CAUSES
  what=$what${at:+ at step $at}
  case $event:$1:$details in
    end:stopped:*) what="stopped, as it was asked to${at:+, at step $at}" ;;
    requeue:requeued:*) ;;
    requeue:*) what="$what; it is requeued" ;;
    hang:*) what="hangs: $(head -n 1 "$run_dir/attempts/$2/hang.txt" 2>/dev/null)" see=why ;;
    failure:stopped:*) what="failed: $what: a mistake in its config or code" see=why ;;
    failure:*'"refused"'*) what="failed: $what, and Slurm has refused to requeue it" see=why ;;
{% if not requeue %}
    failure:*:) what="failed: $what, and restart.requeue is false" see=why ;;
{% endif %}
    failure:*)
      ! is_fault "$1" || why=${why:-"restart.max_crashes allows no more than {{ max_crashes }}"}
      case $why in *"$error"*) error='' ;; esac
      what="failed: $what${code:+ (exit $code)}${error:+: $error}${why:+; $why}" see=why
      ;;
  esac
}
tell() ( # tell EVENT CAUSE ATTEMPT [JSON]   as the ledger has them. In a subshell, of which nothing stays
  trap '' TERM # it comes with a requeue
  details=${4-} about=$3 event='' wanted={{ notify | join(" ") }}
  case $1:$2:$details in
    finished:* | failed:stopped:*'"user"'*) event='end' about=$chain ;;
    failed:overtaken:* | requeued:done:* | requeued:cancelled:* | requeued:overtaken:* | requeued:stopped:*) ;;
    failed:*) event=failure about=$chain ;;
    requeued:*) event=requeue ;;
    hang:*) event=hang ;;
  esac
  [ "$2" != hung ] || [[ " $wanted " = *" $event "* ]] || event=hang about=$3 # it has ended before watch_hang looked
  [[ " $wanted " = *" $event "* ]] || exit
  # Attempts that find the run over are of the same chain: they do not tell it again.
  ! grep -qsxF "$about $event $2" "$run_dir/told" || exit
  { echo "$about $event $2" >>"$run_dir/told"; } 2>/dev/null || missed told
  code=$(detail exit)
  describe "$2" "$3"
  export CLUSTERDP_EVENT=$event CLUSTERDP_CAUSE=$2 CLUSTERDP_EXIT=$code CLUSTERDP_STEP=$at CLUSTERDP_NAME={{ name }}
  export CLUSTERDP_RUN=$run_dir CLUSTERDP_JOB=$job
  export CLUSTERDP_TEXT="$CLUSTERDP_NAME (job $job): $what
clusterdp $see $run_dir"
  send "$CLUSTERDP_TEXT"
)
{% if "hang" in notify %}
watch_hang() { # tell of a hang as soon as it is reported. In a child of this shell, which ends it
  trap 'kill $! 2>/dev/null; exit' TERM
  until [ -e "$here/hang.txt" ]; do sleep 60 & wait $!; done
  tell hang hung "$attempt"
}
{% endif %}
