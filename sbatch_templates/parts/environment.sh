# --- 1 environment ---------------------------------------------------------------------------------------------------
posix=${POSIXLY_CORRECT-}
set +o posix # of the environment; it changes what `.` and functions do
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
command -v module >/dev/null || [ ! -r /etc/profile.d/modules.sh ] || . /etc/profile.d/modules.sh
command -v module >/dev/null || [ ! -r /etc/profile.d/lmod.sh ] || . /etc/profile.d/lmod.sh
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
export LOCAL_WORLD_SIZE={{ ranks_per_node }}
export PYTHONPATH={{ work_dir }}${PYTHONPATH:+:$PYTHONPATH}
{% if setup %}
setup_failed='' setup_errors='' setup_code=0
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
\unalias -a
trap - ERR
set +efuC +o pipefail +o posix # setup may have set these
IFS=$' \t\n'
{% endif %}
