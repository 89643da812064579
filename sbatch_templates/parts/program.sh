{% if kind == "script" %}
# script:, as it stands in the config. The trap lets the shell outlive a signal that the program below handles.
read -r -d '' lines <<'{{ delimiter }}' || true
trap : TERM USR1 USR2
{{ script }}
{{ delimiter }}
program=(bash -c "$lines" {{ name }})
{% elif kind == "entry" %}
program=("$python" -u -m clusterdp.train.worker "$run_dir")
{% else %}
program=({% for word in command %}{{ word }} {% endfor %})
{% endif %}
