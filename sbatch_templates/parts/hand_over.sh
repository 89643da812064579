# --- 3 hand-over -----------------------------------------------------------------------------------------------------
# From here on this process is that program: it gets Slurm's signals itself. The first Python that works is taken: the
# one that submitted, or else the system's. -I, -S: no variable, no user's package and no site-package changes it.
if [ ! -r {{ batch }}/__main__.py ]; then
  echo "clusterdp: "{{ batch }}" is gone: nothing decides whether this job may run. \`clusterdp resume\` writes it." >&2
  exit 4
fi
for candidate in {% for python in interpreters %}{{ python }} {% endfor %}; do
  # A shim changes the environment, and a wrapper keeps the signals: so the interpreter itself is asked for its name.
  supervisor=$("$candidate" -I -S -c 'import sys; sys.version_info < (3, 6) or print(sys.executable)' 2>/dev/null)
  [ -x "$supervisor" ] || continue
  [ -z "$posix" ] || export POSIXLY_CORRECT=$posix # the ranks have it as it was
{% if setup %}
  export CLUSTERDP_SETUP_FAILED=$setup_failed CLUSTERDP_SETUP_CODE=$setup_code CLUSTERDP_SETUP_ERRORS=$setup_errors
{% endif %}
  exec "$supervisor" -I -S -B {{ batch }} run {{ run_dir }} --script={{ script_file }} --awake="$awake" --pid=$$ \
    -- "${step[@]}"
done
echo "clusterdp: no Python 3.6 or later on $HOSTNAME, so nothing decides whether this job may run. Set launch.host_python." >&2
exit 4
