# --- 3 hand-over -----------------------------------------------------------------------------------------------------
# From here on this process is that program: it gets Slurm's signals itself. The first Python that works is taken: the
# one that submitted, or else the system's. -I, -S: no variable, no user's package and no site-package changes it.
{% include "parts/interpreter.sh" %}
{% if setup %}
export CLUSTERDP_SETUP_FAILED=$setup_failed CLUSTERDP_SETUP_CODE=$setup_code CLUSTERDP_SETUP_ERRORS=$setup_errors
{% endif %}
[ -z "$posix" ] || export POSIXLY_CORRECT=$posix # the ranks have it as it was
exec "$supervisor" -I -S -B {{ batch }} run {{ run_dir }} \
  --script={{ script_file }} --awake="$awake" --pid=$$ -- "${step[@]}"
