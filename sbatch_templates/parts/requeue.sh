patience_s=1800 # for a silent controller: one that fails over takes ten minutes and more
look() { # sets `now` to the state of this job: running, preempted (in its grace time), time-limit, requeued (another
  # attempt has it, or will), ending (cancelled), or unknown. Never in $(...): there a TERM would end it without an answer.
  local said='' pause=1 waited=0 restarts
  now=requeued
  if is_replaced; then return; fi
  now=unknown
  until asks_anew= && said=$(scontrol show job "$job" 2>&1) && [ -z "$asks_anew" ]; do
    case $said in *"Invalid job id"*) break ;; esac # the job is over and Slurm has forgotten it
    [ $waited -lt $patience_s ] || return 0
    [ $pause -lt 60 ] || echo "clusterdp: no answer from Slurm's controller for $((waited / 60)) minutes: $said" >&2
    sleep $pause
    waited=$((waited + pause))
    [ $pause -ge 60 ] || pause=$((pause * 2))
  done
  restarts=${said#*Requeue=[01] Restarts=} restarts=${restarts%%[!0-9]*}
  excluded_now=${said#*ExcNodeList=} excluded_now=${excluded_now%%[[:space:]]*}
  case $said in *"ExcNodeList=(null)"*) excluded_now='' ;; *ExcNodeList=*) ;; *) excluded_now='' ;; esac
  case $said in
    *JobState=RUNNING*PreemptTime=[0-9]*) now=preempted ;;
    *JobState=RUNNING*) now=running ;;
    *JobState=COMPLETING*Reason=TimeLimit*) now='time-limit' ;;
    *) now=ending ;;
  esac
  [ "${restarts:-0}" -le "$restart" ] || now=requeued
}
requeue() { # requeue CAUSE   call `look` first. False if the job is not to be requeued after all: `now` says why.
  # When it works, this shell gets TERM, and KILL after KillWait. What must not be killed ignores TERM in a subshell.
  local pause said=''
{% if not requeue %}
  if [ ! -e "$run_dir/cancelled" ]; then
    echo "clusterdp: stopped ($1), and restart.requeue is false. \`clusterdp resume $run_dir\` goes on." >&2
    over "$1" failed 75
  fi
{% endif %}
  for pause in 0 1 2 5 10 20 40; do
    sleep "$pause"
    [ "$pause" = 0 ] || look # the job may have been cancelled meanwhile
    [ -z "$requeued" ] || return 0 # by the trap
    [ ! -e "$run_dir/cancelled" ] || over cancelled cancelled 1
    [ ! -e "$run_dir/stop" ] || over_by_user
    case $now in
      running | preempted | time-limit) ;;
      requeued) requeued=$1; break ;; # the last try worked, and only its answer was lost
      *) return 1 ;;
    esac
    requeued=$1 # a TERM that comes now is from this requeue, and must not end scontrol either
{% if how == "resubmit" %}
    if resubmit; then break; fi
    said='sbatch has refused the next one'
{% else %}
    if said=$(trap '' TERM; scontrol requeue "$job" 2>&1); then break; fi
    case $said in
      *"pending execution"*) break ;; # Slurm was quicker
      *disabled*) if resubmit; then break; fi ;; # this site forbids requeue
    esac
{% endif %}
    requeued=
  done
  if [ -z "$requeued" ]; then
    echo "clusterdp: COULD NOT REQUEUE job $job: $said" >&2
    echo "clusterdp: nothing is lost; go on with \`clusterdp resume $run_dir\`." >&2
    over "$1" failed 75 ',"requeue":"refused"'
  fi
  note cause "$1"
  event requeued ",\"cause\":\"$1\",\"of\":\"$attempt\""
  tell_excluded
{% if notify %}
  tell requeued "$1" "$attempt"
{% endif %}
}
resubmit() { # resubmit [EVENT]   submit a new job that begins when this one is over; both are one chain
  local said new=''
  find_waiting
  if [ -z "$new" ]; then
    if said=$(trap '' TERM; CLUSTERDP_CHAIN=$chain CLUSTERDP_REPLACES=$job:{{ log_id }} CLUSTERDP_UNWRITTEN=$unwritten \
      sbatch --parsable --dependency="afterany:$job" {% for option in resubmit_options %}{{ option }} {% endfor %}"{{ script_file }}"); then
      while read -r said; do # a site's wrapper may print more than the job's id
        said=${said%%;*}
        case $said in "" | *[!0-9]*) ;; *) new=$said{{ index }} ;; esac
      done <<<"$said"
    else
      find_waiting # it may have worked, and only the answer was lost
      [ -n "$new" ] || return 1
    fi
  fi
  [ -z "$new" ] || event "${1-submitted}" ",\"job\":\"$new\""
  successor=$new
}
find_waiting() { # sets `new` to the job of this run that waits for the end of this one, if there is one
  local id waits script
  while IFS='|' read -r id waits script; do
    case $script:$waits: in "{{ script_file }}:"*":$job"[!0-9_]*) new=$id{{ index }} ;; esac
  done < <(squeue --me --noheader --states=PENDING --format='%F|%E|%o' 2>/dev/null)
}
was_cancelled() { # was the attempt before this one cancelled? Slurm accepts a requeue just after a scancel and brings the
  # job back. And it starts a job that waits for the end of another (see resubmit) when that one is cancelled.
  local said=''
  [ -z "${replaces%%:*}" ] || said=$(scontrol show job "${replaces%%:*}" 2>/dev/null)
  case $said in *JobState=CANCELLED*) return 0 ;; esac
  # Only after a scancel there is no "DUE TO ..." or, since 26.05, "DUE to SIGNAL". (sacct has REQUEUED for such an attempt.)
  case $last_notice in "" | *"DUE TO"*) return 1 ;; esac
}
# shellcheck disable=SC2329 # by the trap
on_term() { # comes at scancel, at a requeue, at the time limit, and at a preemption without grace time
  if [ -z "$requeued" ]; then
    look
{% if requeue %}
    # At the time limit only this script requeues, and KILL comes soon: do it first.
    if [ "$now" = time-limit ] && ! is_final && ! exhausted timeout 1; then requeue timeout; fi
{% endif %}
    event signal ',"name":"TERM"'
  fi
  asks_anew=yes # Slurm's earlier answers may be out of date
}
# shellcheck disable=SC2329
is_final() { # have the ranks or the user ended the run?
  local word=''
  [ ! -e "$run_dir/cancelled" ] && [ ! -e "$run_dir/stop" ] || return 0
  [ ! -e "$here/outcome" ] || read -r word _ <"$here/outcome"
  case $word in 'done' | stop | overtaken) ;; *) false ;; esac
}

requeued='' successor='' now='' asks_anew=''
trap on_term TERM
