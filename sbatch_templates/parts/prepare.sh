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
setup_failed='' setup_errors=''
# shellcheck disable=SC2329 # by the trap
setup_error() { # setup_error CODE COMMAND LINE DEPTH   a line of launch.setup has failed; false: no other one is run
  local said="line $3 ended with exit code $1: ${2%%$'\n'*}" ends={% if setup_errors == "stop" %}yes{% else %}no{% endif %}

  case $-:$4 in
    *e*:2) ends=yes ;; # setup asks for that itself
    *:2) ;;
    *) set +e; return 0 ;; # within a file that setup sources, or the last line once more
  esac
  set +e
  case $1:$2 in
    *:'source '* | *:'. '*) (eval "set -- $2"; [ -r "$2" ] || type -P "$2") >/dev/null 2>&1 || ends=yes ;;
    12[67]:* | *:'cd '*) ends=yes ;;
  esac
  case $'\n'$setup_errors in *$'\n'"$said"$'\n'*) ;; *) setup_errors=$setup_errors$said$'\n' ;; esac
  [ "$ends" = no ] || setup_failed="launch.setup: $said" setup_code=$1
  [ "$ends" = no ]
}
trap 'setup_error $? "$BASH_COMMAND" $LINENO ${#BASH_SOURCE[@]} || return' ERR
# launch.setup:
source /dev/stdin <<'{{ setup_delimiter }}'
{{ setup }}
{{ setup_delimiter }}
trap - ERR
set +efuC +o pipefail +o posix # setup may have set these
IFS=$' \t\n'
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
{% if setup %}
[ -z "$setup_errors" ] || note setup "${setup_errors%?}"
if [ -n "$setup_failed" ]; then
  echo "clusterdp: $setup_failed. The program is not started." >&2
  note error "${SLURMD_NODENAME:-$HOSTNAME}"$'\n\n'"$setup_failed"
fi
{% endif %}
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
