for candidate in {% for python in interpreters %}{{ python }} {% endfor %}; do
  # A shim changes the environment, and a wrapper keeps the signals: so the interpreter itself is asked for its name.
  supervisor=$("$candidate" -I -S -c 'import sys; sys.version_info < (3, 6) or print(sys.executable)' 2>/dev/null)
  [ ! -x "$supervisor" ] || break
done
if [ ! -x "$supervisor" ]; then
  echo "clusterdp: no Python 3.6 or later on $HOSTNAME decides whether this job may run. Set launch.host_python." >&2
  exit 4
elif [ ! -r {{ batch }}/__main__.py ]; then
  echo "clusterdp: the run has no batch/, which decides whether this job may run. \`clusterdp resume\` writes it." >&2
  exit 4
fi
