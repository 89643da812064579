{% if kind == "script" %}
# `script:` of the config. The trap keeps the shell alive when a signal comes that the program below handles.
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
