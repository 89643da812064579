# --- preflight -------------------------------------------------------------------------------------------------------
# One task on each node looks at it, before the ranks start (clusterdp/train/preflight). What they say comes here through
# srun, and so also from a node that cannot write to the run folder.
read -r -d '' check <<'END_OF_CHECK' || true
trap '' USR2 # the warning before the end of the time is for the ranks
export RANK=$SLURM_PROCID
{% include "parts/interface.sh" %}
exec "$@"
END_OF_CHECK
preflight() { # a task always exits with 0: one that does not has died, and nobody waits for it
  exec srun --nodes={{ nodes }} --ntasks={{ nodes }} --ntasks-per-node=1 \
    --cpus-per-task={{ cpus_per_task * ranks_per_node }} {% for flag in preflight_flags %}{{ flag }} {% endfor %}--export=ALL --kill-on-bad-exit=1 --wait=420 \
    bash -c "$check" check {% for word in container_prefix %}{{ word }} {% endfor %}"$python" -u -m clusterdp.train.preflight "$run_dir" \
    >"$logs/preflight.out" 2>&1
}
{% if setup %}
if [ -z "$setup_failed" ]; then
{% endif %}
began=$SECONDS
for again in yes no; do
  preflight &
  srun=$!
  while kill -0 $srun 2>/dev/null; do wait $srun; done
  next_port # the ranks get one on which nobody has listened
  [ $again = yes ] || break
  grep -qsE "EADDRINUSE|[Aa]ddress already in use" "$logs/preflight.out" || break
done
took=$((SECONDS - began))
failed='' failures='' heard=''
dead=$(not_launched <"$logs/preflight.out") how='srun could not launch a task there'
[ -n "$dead" ] || {
  read -r node how # the first that ended by itself
  [ -z "$node" ] || dead=$(scontrol show hostnames "$node" | tr '\n' ' ')
} < <(sed -nE '/: Terminated$/d; s/^srun: error: ([^: ]+): tasks? [^:]*: (.*)/\1 its task has died: \2/p' "$logs/preflight.out")
while read -r node; do
  said=$(grep -am 1 "^preflight $node failed " "$logs/preflight.out" 2>/dev/null)
  if [ -n "$said" ]; then heard=yes
  elif [ "$node" = - ]; then continue
  elif [ -n "$dead" ]; then # srun ends the tasks of all nodes then
    case " $dead" in *" $node "*) heard=yes said=$how ;; *) continue ;; esac
  elif grep -qas "^preflight $node ok" "$logs/preflight.out"; then heard=yes; continue
  else said='left no result'
  fi
  said=${said#preflight "$node" failed } said=${said//[\\\"[:cntrl:]]/ } said=${said:0:300}
  echo "clusterdp: preflight: $node: $said" >&2
  failures="$failures,\"$node: $said\""
  [ "$node" = - ] || failed="$failed $node"
done < <(scontrol show hostnames "$SLURM_JOB_NODELIST"; echo -)
while read -r _ node _ said; do
  echo "clusterdp: preflight: $node: $said" >&2
done < <(grep -as '^preflight [^ ]* says ' "$logs/preflight.out")
event preflight ",\"seconds\":$took,\"failures\":[${failures#,}]"
[ -z "$requeued" ] || exit 0 # by the trap
if [ -n "$failures$asks_anew" ]; then # in a preemption the tasks have died, and the nodes are well
  look
  cause=''
  case $now:$failures in
    running:) ;;
    running:*)
      cause=preflight
      policy preflight
{% if nodes > 1 %}
      [ -n "$heard" ] || failed='' # not all nodes are bad: the preflight itself could not run
{% endif %}
      [ "$avoid" = no ] || [ -z "$failed" ] || note avoid "${failed# }"
{% if nodelist %}
      for node in $failed; do
        case " $(scontrol show hostnames {{ nodelist }} | tr '\n' ' ')" in *" $node "*) ;; *) continue ;; esac
        why="$node failed the preflight, and resources.nodelist asks for it"
        echo "clusterdp: $why; giving up. \`clusterdp resume $run_dir resources.nodelist=null\` goes on elsewhere." >&2
        over gave-up failed 1 ",\"reason\":\"$why\""
      done
{% endif %}
      ;;
    preempted:*) cause=preempted ;;
    time-limit:*) cause=timeout ;;
    unknown:*) over unknown failed 75 ",\"reason\":\"Slurm's controller does not answer\"" ;;
    *) leave 1 ;;
  esac
  if [ -n "$cause" ]; then
    note exit "1 $took ${EPOCHSECONDS-$(date +%s)}"
    count "$cause" "$took"
    if exhausted "$cause"; then
      echo "clusterdp: $why; giving up. \`clusterdp resume $run_dir\` goes on with the run." >&2
      over gave-up failed 1 ",\"reason\":\"$why\""
    fi
    requeue "$cause" || leave 1
    exit 0
  fi
fi

{% if setup %}
fi
{% endif %}
