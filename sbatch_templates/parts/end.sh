# --- 4 end -----------------------------------------------------------------------------------------------------------
took=$((SECONDS - began))
note exit "$code $took"
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
          why="$((short + 1)) attempts in a row that asked to be requeued (exit 75) within a minute"
          echo "clusterdp: $why; giving up. See $logs" >&2
          over gave-up failed 1 ",\"reason\":\"$why\""
        fi
        ;;
    esac
    ;;
{% endif %}
esac
if [ -n "$cause" ]; then
  requeue "$cause" || leave "$code"
  exit 0
fi

crashes=$((crashes + 1)) tries={{ max_crashes }} why=''
case $missing:$code in
  0:*) ;;
  *:12[67]) tries=0 why=', again: the program was not found or cannot be executed' ;; # twice: not one node's fault
esac
if [ $crashes -le $tries ]; then
  echo "clusterdp: crashed with exit code $code ($crashes of {{ max_crashes }} that are tried again); see $logs" >&2
  event failed ",\"cause\":\"crash\",\"exit\":$code"
  requeue crash || leave "$code"
  exit 0
fi
echo "clusterdp: crashed with exit code $code$why, for the last time; see $logs" >&2
[ "$code" -ne 0 ] || code=1
over crash failed "$code" ",\"exit\":$code${why:+,\"reason\":\"${why#, again: }\"}"
