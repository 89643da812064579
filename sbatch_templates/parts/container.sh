{% if container_prefix %}
# Apptainer drops or changes some variables, and all where a site or a user wants a clean environment. Not these:
for name in {% for name in env if not name.startswith("APPTAINERENV_") %}{{ name }} {% endfor %}{% for name in secrets %}{{ name }} {% endfor %}{% for name in secret_files %}{{ name }} {% endfor %}"${!CLUSTERDP_@}" "${!SLURM@}" "${!MASTER_@}" "${!PET_@}" \
  {LOCAL_,}{RANK,WORLD_SIZE} NODE_RANK GLOO_SOCKET_IFNAME OMP_NUM_THREADS PYTHON{PATH,UNBUFFERED}; do
  [ -z "${!name+set}" ] || export "APPTAINERENV_$name=${!name}" APPTAINER_NO_EVAL=1
done
{% endif %}
