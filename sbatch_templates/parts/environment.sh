# --- 1 environment ---------------------------------------------------------------------------------------------------
posix=${POSIXLY_CORRECT-}
set +o posix # of the environment; it changes what `.` and functions do
awake=${EPOCHREALTIME-$(date +%s)}
# Where sbatch is called inside another job, that job's variables would change the size and the binding of our srun.
unset "${!SBATCH_@}" "${!SRUN_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_EXPORT_ENV SLURM_HOSTFILE
# Where sbatch is called by a rank of another training, each of our ranks would take its place, and train alone.
unset "${!TORCHELASTIC_@}" RANK WORLD_SIZE LOCAL_{RANK,WORLD_SIZE} NODE_RANK GROUP_RANK CLUSTERDP_{NODES,RESUME_STEP}
{% for names in foreign_variables|batch(5) %}
unset{% for name in names %} {{ name }}{% endfor +%}
{% endfor %}

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
. {{ batch }}/setup.bash{% if setup_errors == "stop" %} stop{% endif %} || exit 4 # records the lines that fail
# launch.setup:
source /dev/stdin <<'{{ setup_delimiter }}'
{{ setup }}
{{ setup_delimiter }}
\unalias -a
trap - ERR
set +efuC +o pipefail +o posix # setup may have set these
IFS=$' \t\n'
{% endif %}
