{% if element and kind == "script" %}
# `script:` of the config, in a file of each element. The trap keeps the shell alive when a signal comes that the
# program below handles.
lines=$(cat {{ run_dir }}/script.sh)
[ -n "$lines" ] || : "${CLUSTERDP_SETUP_FAILED:=script: the lines of this element cannot be read on $HOSTNAME}"
program=(bash -c $'trap : TERM USR1 USR2\n'"$lines" {{ name }})
{% elif element and kind == "command" %}
# `command:` of the config, in a file of each element: its words, each with a NUL behind it. No shell reads them.
program=()
while IFS= read -r -d '' word; do program+=("$word"); done <{{ run_dir }}/words
[ -n "${program-}" ] || : "${CLUSTERDP_SETUP_FAILED:=command: the words of this element cannot be read on $HOSTNAME}"
{% elif kind == "script" %}
# `script:` of the config. The trap keeps the shell alive when a signal comes that the program below handles.
lines={{ script }}
program=(bash -c $'trap : TERM USR1 USR2\n'"$lines" {{ name }})
{% elif kind == "entry" %}
program=({{ python }} -u -m clusterdp.train.worker {{ run_dir }})
{% else %}
program=({% for word in command %}{{ word }} {% endfor %})
{% endif %}
