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

# With these, the program below runs Slurm's commands, whatever comes next.
CLUSTERDP_BEFORE=$(for name in PATH SLURM_CONF "${!LD_@}" "${!PYTHON@}"; do echo "$name=${!name-}"; done)
export CLUSTERDP_BEFORE
export CLUSTERDP_SETUP_FAILED='' CLUSTERDP_SETUP_CODE=4 CLUSTERDP_SETUP_ERRORS='' # the program below reads them
cd {{ work_dir }} || CLUSTERDP_SETUP_FAILED="the folder of the code cannot be entered on $HOSTNAME"
{% if modules %}
command -v module >/dev/null || [ ! -r /etc/profile.d/modules.sh ] || . /etc/profile.d/modules.sh
command -v module >/dev/null || [ ! -r /etc/profile.d/lmod.sh ] || . /etc/profile.d/lmod.sh
for module in{% for module in modules %} {{ module }}{% endfor %}; do
  loaded=${LOADEDMODULES-}
  module load "$module" && # which returns 0 whatever happens in Environment Modules 3
    [[ ${MODULE_VERSION-} != 3.* || $LOADEDMODULES != "$loaded" || :$loaded: == *:"$module"[:/]* ]] && continue
  CLUSTERDP_SETUP_FAILED="launch.modules: $module cannot be loaded on $HOSTNAME. \`module avail\` lists what it has."
  break
done
{% endif %}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS-{{ cpus_per_task }}}
{% for name, value in env.items() %}
export {{ name }}={{ value }}
{% endfor %}
{% for name in secrets %}
# It comes with the environment of submit, if the site passes that on.
[ -n "${{ name }}" ] || : "${CLUSTERDP_SETUP_FAILED:=launch.secrets: {{ name }} is not set in the job: this site passes no environment on. Use launch.secret_files.}"
{% endfor %}
{% for name, path in secret_files.items() %}
{{ name }}=$(cat {{ path }})
[ -n "${{ name }}" ] || : "${CLUSTERDP_SETUP_FAILED:=launch.secret_files.{{ name }}: cannot be read on $HOSTNAME, or is empty. Put it where the nodes see it.}"
export {{ name }}
{% endfor %}
export LOCAL_WORLD_SIZE={{ ranks_per_node }}
export PYTHONPATH={{ work_dir }}${PYTHONPATH:+:$PYTHONPATH}
{% if archive %}
# launch.environment: each node unpacks it in its own /tmp, and `python` is the one in there.
archive={{ archive }}
[ -n "$CLUSTERDP_SETUP_FAILED" ] || . {{ batch }}/environment.bash
{% endif %}
{% if setup %}
# launch.setup:
launch_setup={{ setup }}
[ -n "$CLUSTERDP_SETUP_FAILED" ] || {
  CLUSTERDP_SETUP_FAILED="launch.setup cannot be run on $HOSTNAME" setup_each={{ setup_errors }}
  . {{ batch }}/setup.bash # runs these lines, and records those that fail
}
\unalias -a
trap - ERR
set +efuC +o pipefail +o posix # setup may have set these
IFS=$' \t\n'
{% endif %}
