# On a full disk this attempt could not save, and the next one would not know of it. So wait for room.
waited=0
until said=$({ mkdir -p "$logs" "$run_dir/events" && echo "$chain" >"$here/chain"; } 2>&1); do
  if [ $waited -ge 600 ]; then break; fi
  echo "clusterdp: cannot write to $run_dir: ${said##*: }. Trying again for $(((600 - waited) / 60)) minutes." >&2
  sleep 60
  waited=$((waited + 60))
done
if [ ! -s "$here/chain" ]; then
  # This counts as a crash, but no file can record it. Such attempts are the restarts that have left no folder.
  for trace in "$run_dir/attempts/$job".*/chain; do [ ! -s "$trace" ] || unwritten=$((unwritten - 1)); done
  unwritten=$((unwritten + restart + 1))
  echo "clusterdp: cannot write to $run_dir: ${said##*: }. See who owns it, and whether its disk is full." >&2
  if [ "$unwritten" -le {{ max_crashes }} ]; then
    look
    if requeue disk; then exit 0; fi
  fi
  exit 4
fi
