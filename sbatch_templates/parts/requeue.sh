look() { # what Slurm says of this job now: running, preempted (in its grace time), time-limit, or ending
  local said pause
  for pause in 1 2 4 8 16 32 0; do # a controller under load is silent for a while
    if said=$(scontrol show job "$job" 2>&1); then
      case $said in
        *JobState=RUNNING*PreemptTime=[0-9]*) echo preempted ;;
        *JobState=RUNNING*) echo running ;;
        *JobState=COMPLETING*Reason=TimeLimit*) echo time-limit ;;
        *) echo ending ;; # cancelled, or requeued by Slurm already: not ours to bring back
      esac
      return
    fi
    sleep "$pause"
  done
  echo "clusterdp: scontrol does not answer: $said" >&2
  echo unknown
}
requeue() { # requeue CAUSE   only after a look. When it works, this shell gets TERM, and KILL after KillWait.
  local pause said
{% if not requeue %}
  if [ ! -e "$run_dir/cancelled" ]; then
    echo "clusterdp: stopped ($1), and restart.requeue is false. \`clusterdp resume $run_dir\` goes on." >&2
    over "$1" failed 75
  fi
{% endif %}
  [ ! -e "$run_dir/cancelled" ] || over cancelled cancelled 1
  requeued=$1
  for pause in 0 1 2 5 10 20 40; do
    sleep "$pause"
    if said=$(scontrol requeue "$job" 2>&1); then break; fi
    case $said in
      *"pending execution"*) break ;; # Slurm was quicker
      *disabled*) resubmit "$1" && break ;; # this site forbids requeue
    esac
    requeued=
  done
  if [ -z "$requeued" ]; then
    echo "clusterdp: COULD NOT REQUEUE job $job: $said" >&2
    echo "clusterdp: nothing is lost; go on with \`clusterdp resume $run_dir\`." >&2
    over "$1" failed 75 ',"requeue":"refused"'
  fi
  echo "$1" >"$here/cause"
  event requeued ",\"cause\":\"$1\",\"of\":\"$attempt\""
}
resubmit() { # a new job, which begins when this one is over, and counts as one chain with it
  local new
  new=$(CLUSTERDP_CHAIN=$chain sbatch --parsable --dependency="afterany:$job" "$run_dir/job.sbatch") || return 1
  requeued=$1
  event submitted ",\"job\":\"${new%%;*}\""
}
# shellcheck disable=SC2329 # by the trap
on_term() { # comes at scancel, at a requeue, at the time limit, and at a preemption without grace time
  [ -z "$requeued" ] || return 0
  # At the limit nobody requeues but us, and KILL is near: this first.
  if [ "$(look)" = time-limit ] && ! is_final; then requeue timeout; fi
  event signal ',"name":"TERM"'
}
# shellcheck disable=SC2329
is_final() { # have the ranks said that there is nothing left to do?
  local word=''
  [ ! -e "$here/outcome" ] || read -r word _ <"$here/outcome"
  [ "$word" = "done" ] || [ "$word" = "stop" ]
}

requeued=
trap on_term TERM
