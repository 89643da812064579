trap "" USR2 # the warning before the end of the time is for the ranks
export RANK=$SLURM_PROCID
{% include "parts/interface.sh" %}
{% include "parts/container.sh" %}
exec "$@"
