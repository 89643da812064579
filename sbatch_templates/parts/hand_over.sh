# --- 3 hand-over -----------------------------------------------------------------------------------------------------
# From here on this process is that program: it gets Slurm's signals itself. The first Python that works is taken: the
# one that submitted, or else the system's. -I, -S: no variable, no user's package and no site-package changes it.
{% include "parts/interpreter.sh" %}
{% if setup %}
# A trap of setup's on EXIT would go with this shell. It waits in a child for the program to close descriptor 9.
at_exit=$(trap -p EXIT)
[ -z "$at_exit" ] || exec 9> >(trap '' TERM; eval "$at_exit"; cat >/dev/null)
{% endif %}
[ -z "$posix" ] || export POSIXLY_CORRECT=$posix # the ranks have it as it was
exec "$supervisor" -I -S -B {{ batch }} run {{ run_dir }} \
  --script={{ script_file }} --awake="$awake" --pid=$$ {% if setup %}--at-exit="${at_exit:+$!}" {% endif %}-- "${step[@]}"
