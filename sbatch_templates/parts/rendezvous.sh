# --- 2 rendezvous ----------------------------------------------------------------------------------------------------
# The first host's name, if it leads to this node from outside; else the address that Slurm knows the node by.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
case $(getent ahostsv4 "$MASTER_ADDR" 2>/dev/null || echo none) in
  none | 127.*)
    node=$(scontrol show node "$MASTER_ADDR"); node=${node#*NodeAddr=}
    MASTER_ADDR=${node%%[[:space:]]*}
    ;;
esac

# A port below the kernel's ephemeral range, where no outgoing connection can sit. Seeded by job and restart count, so
# that two jobs on a node do not meet and a new attempt does not meet the sockets of the old one; then probed.
low=32768
[ ! -r /proc/sys/net/ipv4/ip_local_port_range ] || read -r low _ </proc/sys/net/ipv4/ip_local_port_range
[ "$low" -ge 12000 ] || low=32768 # the range covers nearly everything: there is no outside
port_of() { # port_of TRY
  echo $((10000 + (SLURM_JOB_ID * 10 + ${SLURM_RESTART_COUNT-0} % 5 * 2 + $1) % (low - 10000)))
}
is_taken() { (exec 3<>"/dev/tcp/$MASTER_ADDR/$1") 2>/dev/null; }
try=0
while MASTER_PORT=$(port_of $try); is_taken "$MASTER_PORT"; do try=$((try + 1)); done

# When Slurm will end the job; asked here and once, for a container may have no squeue, and 22.05 no SLURM_JOB_END_TIME.
time_left() { # seconds, from [D-][[HH:]MM:]SS; nothing if there is no limit
  local left days=0
  left=$(squeue --noheader --jobs="$job" --format=%L 2>/dev/null) || return 0
  case $left in *-*) days=${left%%-*} left=${left#*-} ;; esac
  case $left in *[!0-9:]* | "") return 0 ;; esac
  local IFS=: total=0 part
  for part in $left; do total=$((total * 60 + 10#$part)); done
  echo $((days * 86400 + total))
}
left=$(time_left)
CLUSTERDP_JOB_END_TIME=${left:+$(($(date +%s) + left))}
export MASTER_ADDR MASTER_PORT CLUSTERDP_JOB_END_TIME
export CLUSTERDP_RUN_DIR=$run_dir CLUSTERDP_ATTEMPT=$attempt CLUSTERDP_LOGS=$logs
export CLUSTERDP_CHECKPOINT_URL={{ checkpoint_url }}
{% if from_step is not none %}
ls "$run_dir"/attempts/"$job".*/saved >/dev/null 2>&1 || # until this job has a checkpoint of its own
  export CLUSTERDP_RESUME_STEP={{ from_step }}
{% endif %}
