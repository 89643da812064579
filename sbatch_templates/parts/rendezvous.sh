# --- 2 rendezvous ----------------------------------------------------------------------------------------------------
# When Slurm will end the job, if it has not said so (22.05 does not), and when it queued and began it. That is asked
# once, here: a container may have no squeue. The answer comes on descriptor 7 while the address and the port are found.
asked=${EPOCHSECONDS-$(date +%s)}
exec 7< <(SLURM_TIME_FORMAT=%s squeue --noheader --jobs="$job" --format='%L %V %S' 2>/dev/null)

# The name of the first host, if other nodes can reach it by that name; else the node's address in Slurm.
MASTER_ADDR=$SLURM_JOB_NODELIST first='^([^],[]*)\[([0-9]+)[^]]*](.*)$'
while [[ $MASTER_ADDR =~ $first ]]; do # n[03-07,12],m1 -> n03,m1
  MASTER_ADDR=${BASH_REMATCH[1]}${BASH_REMATCH[2]}${BASH_REMATCH[3]}
done
MASTER_ADDR=${MASTER_ADDR%%,*}
case $(getent ahostsv4 "$MASTER_ADDR" 2>/dev/null) in
  "" | 127.*)
    node=$(scontrol show node "$MASTER_ADDR"); node=${node#*NodeAddr=}
    MASTER_ADDR=${node%%[[:space:]]*}
    ;;
esac

# A port below the kernel's ephemeral range, which no outgoing connection uses. It depends on job and restart count:
# two jobs on a node have different ports, and so has a new attempt beside the sockets of the old one. Then it is probed.
low=32768
[ ! -r /proc/sys/net/ipv4/ip_local_port_range ] || read -r low _ </proc/sys/net/ipv4/ip_local_port_range
[ "$low" -ge 12000 ] || low=32768 # the range covers nearly all ports: nothing is left below it
try=0
next_port() { # sets MASTER_PORT to the next one on which nobody listens
  while
    MASTER_PORT=$((10000 + (SLURM_JOB_ID * 10 + ${SLURM_RESTART_COUNT-0} % 5 * 2 + try) % (low - 10000)))
    try=$((try + 1))
    { true <>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT"; } 2>/dev/null
  do :; done
}
next_port

end_after() { # end_after LEFT   LEFT is [D-][[HH:]MM:]SS, counted from `asked`; no end time if there is no limit
  local left=$1 days=0 seconds=0 part IFS=:
  CLUSTERDP_JOB_END_TIME=
  case $left in *-*) days=${left%%-*} left=${left#*-} ;; esac
  case $left in *[!0-9:]* | "") return ;; esac
  for part in $left; do seconds=$((seconds * 60 + 10#$part)); done
  CLUSTERDP_JOB_END_TIME=$((asked + days * 86400 + seconds))
}
read -r ${SLURM_JOB_END_TIME:+-t 10} left queued_at begun_at <&7 # the times of the queue are not worth a longer wait
exec 7<&-
if [ -n "${SLURM_JOB_END_TIME-}" ]; then
  CLUSTERDP_JOB_END_TIME=$SLURM_JOB_END_TIME
else
  end_after "$left"
fi
case $queued_at:$begun_at in
  *[!0-9:]* | :* | *:) ;;
  *) event queued ",\"since\":$queued_at,\"until\":$begun_at" ;;
esac
export MASTER_ADDR MASTER_PORT CLUSTERDP_JOB_END_TIME
export CLUSTERDP_RUN_DIR=$run_dir CLUSTERDP_ATTEMPT=$attempt CLUSTERDP_LOGS=$logs
export CLUSTERDP_CHECKPOINT_URL={{ checkpoint_url }}
{% if from_step is not none %}
ls "$run_dir"/attempts/"$job".*/saved >/dev/null 2>&1 || # until this job has a checkpoint of its own
  export CLUSTERDP_RESUME_STEP={{ from_step }}
{% endif %}
