# Without room this attempt could not save, and the next one would know nothing of it. So wait for some.
waited=0
until said=$({ mkdir -p "$logs" "$run_dir/events" && echo "$chain" >"$here/chain"; } 2>&1); do
  if [ $waited -ge 600 ]; then break; fi
  echo "clusterdp: cannot write to $run_dir: ${said##*: }. Trying again for $(((600 - waited) / 60)) minutes." >&2
  sleep 60
  waited=$((waited + 60))
done
if [ ! -s "$here/chain" ]; then
  # A crash like any other, but that no file can say so: such attempts are the restarts of which there is no trace.
  for trace in "$run_dir/attempts/$job".*/chain; do [ ! -s "$trace" ] || unwritten=$((unwritten - 1)); done
  unwritten=$((unwritten + restart + 1))
  echo "clusterdp: cannot write to $run_dir: ${said##*: }. See who owns it, and whether its disk is full." >&2
  if [ "$unwritten" -le {{ max_crashes }} ]; then
    look
    if requeue crash; then exit 0; fi
  fi
  exit 4
fi
