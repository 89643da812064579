{% if silence_s %}
{% include "parts/silence.sh" %}

{% endif %}
{% if kind == "entry" %}
end_srun() { # if srun has not ended minutes after the ranks left their outcome: the slurmstepd of its step was killed, or
  # a rank cannot exit. Slurm notices when the node registers again, in half an hour, or at the time limit.
  local agreed=no
  trap 'kill $!; exit' TERM
  while
    sleep 300 &
    wait $!
    [ $agreed = no ]
  do
    [ ! -e "$here/outcome" ] || agreed=yes
  done
  echo "clusterdp: the ranks have left their outcome, and srun has not ended for 5 minutes. Ending it." >&2
  kill "$srun"
}
{% endif %}
{% if setup %}
[ -z "$setup_failed" ] || step() { exit "$setup_code"; }
{% endif %}
{% if "hang" in notify %}
watch_hang &
hang_watcher=$!
{% endif %}
began=$SECONDS
for again in yes no; do
  step &
  srun=$!
{% if silence_s %}
  watch_silence $srun &
  watcher=$!
{% endif %}
{% if kind == "entry" %}
  end_srun &
  watch=$!
{% endif %}
  # Bash runs a trap only between commands, and `wait` returns when a trapped signal comes: so wait until srun is gone.
  while kill -0 $srun 2>/dev/null; do wait $srun; done
  wait $srun
  code=$?
{% if silence_s %}
  kill $watcher 2>/dev/null
{% endif %}
{% if kind == "entry" %}
  kill $watch 2>/dev/null
{% endif %}
  # The port was free when it was probed and is taken now: try once more with the next one.
  [ $code -ne 0 ] && [ $again = yes ] && [ -z "$requeued" ] || break
  grep -qsE "EADDRINUSE|[Aa]ddress already in use" "$logs"/rank-00000.out "$logs"/node-00000.out || break
  next_port
  echo "clusterdp: the port was taken; once more with $MASTER_PORT." >&2
done
