# --- 1 prepare -------------------------------------------------------------------------------------------------------
awake=${EPOCHREALTIME-$(date +%s)}
# Where sbatch is called inside another job, that job's variables would change the size and the binding of our srun.
unset "${!SBATCH_@}" "${!SRUN_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_EXPORT_ENV
# Where sbatch is called by a rank of another training, each of our ranks would take its place, and train alone.
unset "${!TORCHELASTIC_@}" RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK CLUSTERDP_RESUME_STEP
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
{% for name in secrets %}
if [ -z "${{ name }}" ]; then # it comes with the environment of submit, if the site passes that on
  echo "clusterdp: launch.secrets: {{ name }} is not set in the job: this site passes no environment on. Use launch.secret_files." >&2
  exit 4
fi
{% endfor %}
{% for name, path in secret_files.items() %}
{{ name }}=$(cat {{ path }}) || {
  echo "clusterdp: launch.secret_files.{{ name }}: cannot be read on $HOSTNAME. Put it where the nodes see it." >&2
  exit 4
}
export {{ name }}
{% endfor %}
export PYTHONPATH={{ work_dir }}${PYTHONPATH:+:$PYTHONPATH}
{% if setup %}
# launch.setup:
{{ setup }}
set +eu +o pipefail # setup may have set these
{% endif %}

job=$SLURM_JOB_ID # in an array, the last element has the array's own id, which would name all elements
[ -z "${SLURM_ARRAY_JOB_ID-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
restart=${SLURM_RESTART_COUNT-0}
attempt=$job.$restart
here=$run_dir/attempts/$attempt logs=$run_dir/attempts/$attempt/logs
chain=${CLUSTERDP_CHAIN-$job} # the first job of a chain of resubmissions, where a site forbids requeue
replaces=${CLUSTERDP_REPLACES-} # JOB:ID, the one before this in that chain
[ -n "$replaces" ] && [ "$restart" = 0 ] || replaces=:{{ log_id }} # a requeued job follows itself
unwritten=${CLUSTERDP_UNWRITTEN-0} # attempts of the chain that could write nothing, on a full disk
unset CLUSTERDP_CHAIN CLUSTERDP_REPLACES CLUSTERDP_UNWRITTEN
# The job's output. What ended the attempt before this one is in the last notice that slurmstepd has written there.
out=$run_dir/slurm-{{ log_id }}.out before=$run_dir/slurm-${replaces##*:}.out
[ -e "$before" ] || before=$run_dir/submitit/${replaces##*:}_0_log.out
[ -e "$out" ] || out=$run_dir/submitit/${SLURM_JOB_ID}_0_log.out
last_notice=$(grep -aE '\*\*\* JOB [0-9]+ ON .* CANCELLED AT ' "$before" 2>/dev/null | tail -n 1)
out_began=$(wc -c 2>/dev/null <"$out")

{% include "parts/policy.sh" %}

{% include "parts/record.sh" %}

{% if notify %}
{% include "parts/notify.sh" %}

{% endif %}
{% include "parts/nodes.sh" %}

{% include "parts/requeue.sh" %}

{% include "parts/room.sh" %}

{% include "parts/earlier.sh" %}

note began "$(date '+%s %Y-%m-%dT%H:%M:%S') $restart $SLURM_JOB_NODELIST"
gpus=$((${SLURM_GPUS_ON_NODE:-0} * ${SLURM_JOB_NUM_NODES:-1}))
event started ",\"job\":\"$job\",\"restart\":$restart,\"nodes\":\"$SLURM_JOB_NODELIST\",\"awake\":${awake/,/.}\
,\"cpus\":\"${SLURM_JOB_CPUS_PER_NODE-}\",\"gpus\":$gpus"
if [ -e "$run_dir/cancelled" ] || was_cancelled; then
  echo "clusterdp: this run was cancelled; not starting. \`clusterdp resume $run_dir\` goes on with it." >&2
  over cancelled cancelled 1
fi
if [ -e "$run_dir/stop" ]; then
  echo "clusterdp: this run was asked to stop; not starting. \`clusterdp resume $run_dir\` goes on with it." >&2
  over_by_user
fi
if [ -n "$ended" ] && exhausted "${ended##* }"; then # Slurm requeued it by itself
  echo "clusterdp: $why; not starting. \`clusterdp resume $run_dir\` goes on with the run." >&2
  over gave-up failed 1 ",\"reason\":\"$why\""
fi
{% if kind == "entry" %}
if [ "$idle" -ge {{ max_no_progress }} ]; then
  why="$idle attempt(s) in a row without a new checkpoint"
  echo "clusterdp: $why; giving up. See \`clusterdp status $run_dir\`." >&2
  over gave-up failed 1 ",\"reason\":\"$why\""
fi
{% endif %}
exclude
if [ $moved = 0 ] && is_bad_here; then # Slurm requeued it by itself, and took one of them again
  echo "clusterdp: this job has a node that the run avoids ($excluded): it goes back into the queue." >&2
  look
  if requeue bad-node; then exit 0; fi
fi
[ -z "$ended" ] || pause "${ended##* }" "${over_at:-0}"
{% if chain %}
if [ $links -lt {{ chain }} ]; then # the next one waits in the queue while this one runs
  resubmit linked || echo "clusterdp: restart.chain: the next job could not be submitted; it will be when this one ends." >&2
  successor=''
fi
{% endif %}
