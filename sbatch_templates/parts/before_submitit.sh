{% include "parts/environment.sh" %}

# The program in the run folder, batch/, decides whether this attempt may start: it prints what the ranks get, or `exit`.
{% include "parts/interpreter.sh" %}
{% if setup %}
export CLUSTERDP_SETUP_FAILED=$setup_failed CLUSTERDP_SETUP_CODE=$setup_code CLUSTERDP_SETUP_ERRORS=$setup_errors
[ -z "$setup_failed" ] || srun() { return "$setup_code"; }
{% endif %}
# Without a trap this shell dies of TERM, and nothing requeues the job at its time limit.
term=''
trap 'term=--term' TERM
supervise=("$supervisor" -I -S -B {{ batch }})
eval "$("${supervise[@]}" begin {{ run_dir }} --awake="$awake" || echo exit 4)"
{% if watches_hang %}
"${supervise[@]}" watch {{ run_dir }} &
{% endif %}
