run_dir={{ run_dir }}

{% include "parts/prepare.sh" %}

{% include "parts/rendezvous.sh" %}
export LOCAL_WORLD_SIZE={{ ranks_per_node }}
{% if setup %}
[ -z "$setup_failed" ] || srun() { return "$setup_code"; }
{% endif %}
{% if "hang" in notify %}
watch_hang &
hang_watcher=$!
{% endif %}
began=$SECONDS
