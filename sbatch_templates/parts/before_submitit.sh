{% include "parts/environment.sh" %}

# The program in the run folder, batch/, decides whether this attempt may start: it prints what the ranks get, or `exit`.
{% include "parts/interpreter.sh" %}
[ -z "$CLUSTERDP_SETUP_FAILED" ] || srun() { return "$CLUSTERDP_SETUP_CODE"; }
# Without a trap this shell dies of TERM, and nothing requeues the job at its time limit.
term=''
trap 'term=--term' TERM
supervise=("$supervisor" -I -S -B {{ batch }})
eval "$("${supervise[@]}" begin {{ run_dir }} --awake="$awake" || echo exit 4)"
{% if watches_hang %}
"${supervise[@]}" watch {{ run_dir }} &
{% endif %}
