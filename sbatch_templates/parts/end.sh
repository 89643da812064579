# --- 4 end -----------------------------------------------------------------------------------------------------------
word='' reason='' step=0
{% if kind == "entry" %}
for pause in 0 1 2 4 8 15; do # a shared file system may show the outcome late
  [ ! -e "$here/outcome" ] || break
  [ "$code" -eq 0 ] || [ "$pause" = 0 ] || break
  sleep "$pause"
done
{% endif %}
[ ! -e "$here/outcome" ] || read -r word reason step <"$here/outcome"
case $word in
  'done') over 'done' finished 0 ",\"step\":${step:-0}" ;;
  stop) code=1; [ "$reason" != entry ] || code=2; over stopped failed $code ",\"reason\":\"$reason\",\"exit\":$code" ;;
esac
[ -z "$requeued" ] || exit 0

[ ! -e "$run_dir/cancelled" ] || over cancelled cancelled 1
now=$(look)
case $word:$now in
  *:ending) # cancelled, or Slurm has requeued the job itself: the next attempt, if there is one, says which
    event signal ",\"name\":\"ending\",\"exit\":$code"
    exit "$code"
    ;;
  *:unknown)
    echo "clusterdp: nobody knows whether this job may go on; \`clusterdp resume $run_dir\` goes on with it." >&2
    over lost failed 75 ",\"exit\":$code"
    ;;
  *:preempted) requeue preempted ;; # whatever the exit code: killed in its grace time is no crash
  *:time-limit) requeue timeout ;;
  requeue:*) if [ "$reason" = time ]; then requeue timeout; else requeue signal; fi ;;
{% if kind != "entry" %}
  *:*)
    case $code in
      0) over 'done' finished 0 ;;
      75) requeue signal ;; # EX_TEMPFAIL: the program asks for it, having saved
    esac
    ;;
{% endif %}
esac
[ -z "$requeued" ] || exit 0

crashes=$((crashes + 1))
if [ $crashes -le {{ max_crashes }} ] && [ "$now" = running ]; then
  echo "clusterdp: crashed with exit code $code ($crashes of {{ max_crashes }} that are tried again); see $logs" >&2
  event failed ",\"cause\":\"crash\",\"exit\":$code"
  requeue crash
  exit 0
fi
echo "clusterdp: crashed with exit code $code, for the last time; see $logs" >&2
[ "$code" -ne 0 ] || code=1
over crash failed "$code" ",\"exit\":$code"
