{% if element and kind == "script" %}
# `script:` of the config, in a file of each element. The trap keeps the shell alive when a signal comes that the
# program below handles.
lines=$'trap : TERM USR1 USR2\n'$(cat {{ run_dir }}/script.sh) || exit 4
program=(bash -c "$lines" {{ name }})
{% elif element and kind == "command" %}
# `command:` of the config, in a file of each element: its words, each with a NUL behind it. No shell reads them.
program=()
while IFS= read -r -d '' word; do program+=("$word"); done <{{ run_dir }}/words
[ ${#program[@]} -gt 0 ] || exit 4
{% elif kind == "script" %}
# `script:` of the config. The trap keeps the shell alive when a signal comes that the program below handles.
read -r -d '' lines <<'{{ delimiter }}' || true
trap : TERM USR1 USR2
{{ script }}
{{ delimiter }}
program=(bash -c "$lines" {{ name }})
{% elif kind == "entry" %}
program=({{ python }} -u -m clusterdp.train.worker {{ run_dir }})
{% else %}
program=({% for word in command %}{{ word }} {% endfor %})
{% endif %}
