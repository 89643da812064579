# --- 1 prepare -------------------------------------------------------------------------------------------------------
# What leaks in when sbatch is called from inside another job would spoil the size and the binding of our own srun.
unset "${!SBATCH_@}" "${!SRUN_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_EXPORT_ENV
{% if not mem_per_cpu %}
unset SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU
{% endif %}

cd {{ work_dir }} || exit 4
{% if modules %}
command -v module >/dev/null ||
  . /etc/profile.d/modules.sh 2>/dev/null || . /etc/profile.d/lmod.sh
{% for module in modules %}
module load {{ module }} || exit 4
{% endfor %}
{% endif %}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS-{{ cpus_per_task }}}
{% for name, value in env.items() %}
export {{ name }}={{ value }}
{% endfor %}
export PYTHONPATH={{ work_dir }}${PYTHONPATH:+:$PYTHONPATH}
{% if setup %}
# launch.setup:
{{ setup }}
set +eu +o pipefail # whatever it left behind
{% endif %}

job=$SLURM_JOB_ID # in an array the last element's id is the array's own, and would name all of it
[ -z "${SLURM_ARRAY_JOB_ID-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
attempt=$job.${SLURM_RESTART_COUNT-0}
chain=${CLUSTERDP_CHAIN-$job}; unset CLUSTERDP_CHAIN
here=$run_dir/attempts/$attempt logs=$run_dir/attempts/$attempt/logs
if ! mkdir -p "$logs" "$run_dir/events" || ! echo "$chain" >"$here/chain"; then
  echo "clusterdp: cannot write to $run_dir; see who owns it, and whether its disk is full." >&2
  exit 4
fi

event() { # event NAME [JSON]   one line in this script's own file of the ledger
  local now=${EPOCHREALTIME-$(date +%s)}
  printf '{"time":%s,"event":"%s","attempt":"%s"%s}\n' "${now/,/.}" "$1" "$attempt" "${2-}" \
    >>"$run_dir/events/$attempt-batch.jsonl"
}
over() { # over CAUSE EVENT EXIT [JSON]   the last word about this attempt
  [ -e "$here/cause" ] || echo "$1" >"$here/cause"
  event "$2" ",\"cause\":\"$1\"${4-}"
  exit "$3"
}

# What the earlier attempts of this job came to. Slurm requeues by itself when a node fails or a preemption has no grace
# time; such attempts never reached the end of this script, and get their cause here. Hence budgets are checked here.
crashes=0 idle=0
while read -r name; do
  then=$run_dir/attempts/$name
  word='' reason='' cause=lost chained=''
  [ ! -e "$then/chain" ] || read -r chained <"$then/chain"
  [ "$name" != "$attempt" ] && [ "$chained" = "$chain" ] || continue
  [ ! -e "$then/outcome" ] || read -r word reason _ <"$then/outcome"
  if [ ! -e "$then/cause" ]; then
    case "$word $reason" in "requeue time") cause=timeout ;; requeue*) cause=preempted ;; esac
    echo "$cause" >"$then/cause"
    event requeued ",\"cause\":\"$cause\",\"of\":\"$name\""
  fi
  read -r cause <"$then/cause"
  case $word in
    'done') echo "clusterdp: attempt $name has finished this run."; over 'done' finished 0 ;;
    stop) echo "clusterdp: attempt $name has stopped this run for good."; over stopped failed 1 ;;
  esac
  [ "$cause" != crash ] || crashes=$((crashes + 1))
  if [ -e "$then/saved" ]; then idle=0; else idle=$((idle + 1)); fi
done < <(cd "$run_dir/attempts" && printf '%s\n' * | sort -t. -k1,1n -k2,2n)

event started ",\"job\":\"$job\",\"restart\":${SLURM_RESTART_COUNT-0},\"nodes\":\"$SLURM_JOB_NODELIST\""
if [ -e "$run_dir/cancelled" ]; then
  echo "clusterdp: this run was cancelled; not starting. \`clusterdp resume $run_dir\` goes on with it." >&2
  over cancelled cancelled 1
fi
{% if kind == "entry" %}
if [ "$idle" -ge {{ max_no_progress }} ]; then
  echo "clusterdp: $idle attempts in a row without a new checkpoint; giving up. See \`clusterdp status $run_dir\`." >&2
  over gave-up failed 1
fi
{% endif %}
