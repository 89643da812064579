# --- 4 end -----------------------------------------------------------------------------------------------------------
took=$((SECONDS - began))
{% if "hang" in notify %}
kill $hang_watcher 2>/dev/null
{% endif %}
{% if kind != "entry" %}
asked_first() { # did the rank that failed first exit with 75? The others are killed then, and srun exits with their signal
  [ ! -e "$out" ] || [ Exited\ with\ exit\ code\ 75 != "$(tail -c +$((out_began + 1)) "$out" |
    sed -nE 's/^srun: error: [^ :]+: tasks? [0-9][^:]*: (.*)/\1/p' | head -n 1)" ] || code=75
}
[ "$code" -le 128 ] || asked_first
{% endif %}
note exit "$code $took ${EPOCHSECONDS-$(date +%s)}"
is_replaced || event exited ",\"exit\":$code"
word='' reason='' step=0
{% if kind == "entry" %}
for pause in 0 1 2 4 8 15; do # a shared file system may show the outcome late
  [ ! -e "$here/outcome" ] || break
  [ "$code" -eq 0 ] || [ "$pause" = 0 ] || break
  sleep "$pause"
done
{% endif %}
[ ! -e "$here/outcome" ] || read -r word reason step <"$here/outcome"
case $word:$reason in
  'done':*) over 'done' finished 0 ",\"step\":${step:-0}" ;;
  stop:cancelled) over cancelled cancelled 1 ;;
  overtaken:* | stop:claim) over overtaken failed 1 ',"reason":"claim"' ;;
  stop:user) over_by_user ;;
  stop:*) code=1; [ "$reason" != entry ] || code=2; over stopped failed $code ",\"reason\":\"$reason\",\"exit\":$code" ;;
esac
[ -z "$requeued" ] || exit 0

[ ! -e "$run_dir/cancelled" ] || over cancelled cancelled 1
[ ! -e "$run_dir/stop" ] || over_by_user # a program of the user's may end with 0 when it has saved
look
cause=''
case $word:$now in
  *:ending | *:requeued) leave "$code" ;;
  *:unknown)
    why="Slurm's controller has not answered for $((patience_s / 60)) minutes"
    echo "clusterdp: $why, so nobody knows whether this job may go on. What was saved is safe:" \
      "\`clusterdp resume $run_dir\` goes on with it." >&2
    over unknown failed 75 ",\"reason\":\"$why\",\"exit\":$code"
    ;;
  *:preempted) cause=preempted ;; # whatever the exit code: a program that is killed in its grace time has not crashed
  *:time-limit) cause=timeout ;;
  requeue:*) if [ "$reason" = time ]; then cause=timeout; else cause=signal; fi ;;
{% if kind != "entry" %}
  *:*)
    case $code in
      0) over 'done' finished 0 ;;
      75) # EX_TEMPFAIL: the program has saved and asks for a requeue. One that asks at once each time saves nothing.
        cause=asked
        if [ "$took" -lt 60 ] && [ $((short + 1)) -ge {{ max_no_progress }} ]; then
          why="$((short + 1)) attempt(s) in a row that asked to be requeued (exit 75) within a minute"
          echo "clusterdp: $why; giving up. See $logs" >&2
          over gave-up failed 1 ",\"reason\":\"$why\""
        fi
        ;;
    esac
    ;;
{% endif %}
esac
unlaunched=$([ ! -e "$out" ] || tail -c +$((out_began + 1)) "$out" | not_launched)
if [ -z "$cause" ] && [ -n "$unlaunched" ]; then
  cause="node-lost"
  policy node-lost
  [ "$avoid" = no ] || note avoid "${unlaunched% }"
  echo "clusterdp: srun could not launch tasks on ${unlaunched% }: that node has failed, not the program." >&2
fi
idle_s=$took
[ ! -e "$here/saved" ] || spent=0 idle_s=0
if [ -n "$cause" ]; then
  count "$cause" "$idle_s"
  if exhausted "$cause"; then
    echo "clusterdp: $why; giving up. \`clusterdp resume $run_dir\` goes on with the run." >&2
    over gave-up failed 1 ",\"reason\":\"$why\""
  fi
  requeue "$cause" || leave "$code"
  exit 0
fi

{% include "parts/evidence.sh" %}

find_fault
find_error
count "$fault" "$idle_s"
said=${error:-$reported} said=${said//[\\\"[:cntrl:]]/ } said=${said:0:300}
details=",\"exit\":$code${said:+,\"error\":\"$said\"}" why=''
case $missing:$code:${setup_failed-} in
  0:*) ;;
  *:12[67]:) why='the program was not found or cannot be executed' ;; # twice: not one node's fault
esac
if [ -z "$why" ] && is_repeated; then why="the same error as before: $said"; fi
if [ -z "$why" ] && ! exhausted "$fault"; then
  echo "clusterdp: $how with exit code $code ($faults of {{ max_crashes }} faults that are tried again); see $logs" >&2
  event failed ",\"cause\":\"$fault\"$details"
  case $node in *[],[]*) ;; *) [ -z "$error$reported" ] || once=$node ;; esac # would it have failed elsewhere?
  requeue "$fault" || leave "$code"
  exit 0
fi
echo "clusterdp: $how with exit code $code, for the last time: $why; see $logs" >&2
case $why in "$faults fault"*) why='' ;; esac # the list of attempts shows them
[ "$code" -ne 0 ] || code=1
over "$fault" failed "$code" "$details${why:+,\"reason\":\"$why\"}"
