# restart.hang_after_s: the program hangs when no log has grown for so long, and none of its processes has used CPU time
# in the second half of that. (A program that waits for NCCL keeps a core busy, and is not found so.) The sizes of the logs
# are looked at from here. Only while they are silent, a small step looks at the processes of each node.
read -r -d '' list_processes <<'END_OF_LIST' || true
files=$(grep -lzsx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ)
[ -z "$files" ] || files=$(grep -lzsE '^SLURM_STEP_ID=[0-9]+$' $files)
[ -z "$files" ] || files=$(grep -Lzsx "SLURM_STEP_ID=$SLURM_STEP_ID" $files)
for file in $files; do # node, pid, state, ticks of CPU time (its ended children's too), command
  read -r stat 2>/dev/null <"${file%environ}stat" || continue
  command=${stat#*\(} command=${command%\)*}
  set -- "${stat%% *}" ${stat##*) }
  echo "$SLURMD_NODENAME $1 $2 $((${13} + ${14} + ${15} + ${16})) $command"
done
END_OF_LIST
processes() {
  srun --overlap --mem=0 --time=1 --nodes={{ nodes }} --ntasks={{ nodes }} --ntasks-per-node=1 --cpus-per-task=1 \
    bash -c "$list_processes" 2>/dev/null
}
is_idle() { # is_idle BEFORE AFTER SECONDS   has no process used 1 % of a core or more? One that has come is at work
  [ -n "$2" ] && awk -v seconds="$3" 'NR == FNR { used[$1 " " $2] = $4; next }
    !(($1 " " $2) in used) || $4 - used[$1 " " $2] >= seconds { busy = 1 } END { exit busy }' <(echo "$1") <(echo "$2")
}
# shellcheck disable=SC2329 # in the background
watch_silence() { # watch_silence SRUN   in a child of this shell, which ends it
  local pause={{ [silence_s // 10, 1] | max }} half={{ [silence_s // 2, 1] | max }} silent=0 since=0 told='' sizes last='' before='' after
  trap 'kill $! 2>/dev/null; exit' TERM
  while sleep $pause & wait $!; do # a job that is suspended does not count on
    sizes=$(ls -ln "$logs" 2>/dev/null)
    silent=$((silent + pause))
    if [ "$sizes" != "$last" ]; then
      [ -z "$told" ] || event hang-ended
      last=$sizes silent=0 since=0 before='' told=''
    elif [ $((silent - since)) -lt $half ]; then :
    elif [ -z "$before" ]; then
      before=$(processes) since=$silent
    else
      after=$(processes)
      if is_idle "$before" "$after" $((silent - since)); then
        if [ -z "$told" ]; then
          told="no output for $silent s, and no process has used CPU time in the last $((silent - since)) s"
          echo "clusterdp: the program hangs: $told; see $here/hang.txt" >&2
          note hang.txt "$told
node pid state ticks command
$after"
          event hang ",\"ranks\":[],\"nodes\":\"\",\"reason\":\"$told\""
        fi
{% if on_hang != "report" %}
        if [ $silent -ge {{ silence_s if on_hang == "restart" else 2 * silence_s }} ]; then
          note hung ''
          kill -TERM "$1" # srun kills the step
          return
        fi
{% endif %}
      elif [ -n "$told" ]; then
        event hang-ended
        told=''
      fi
      before=$after since=$silent
    fi
  done
}
