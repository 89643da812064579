# What the attempt died of, by its logs and by what Slurm wrote into the job's output.
ends_of_logs() { # print the end of each rank's log, and what this attempt's srun has said
  tail -c 4096 "$logs"/*.out 2>/dev/null | grep -avE "$went_on"
  [ ! -e "$out" ] || tail -c +$((out_began + 1)) "$out" | grep -aE '^(srun|slurmstepd)[-:]'
}
find_fault() { # sets `fault`, the cause of an end that neither Slurm nor the user has asked for, and `how`, in words
  local said nodes
  said=$(ends_of_logs | grep -aoE "$out_of_memory|$disk_full" | tail -n 1)
  if [ -e "$here/hung" ]; then
    fault=hung how=hung
    policy hung
    read -r nodes <"$here/hung"
    [ "$avoid" = no ] || [ -z "$nodes" ] || note avoid "$nodes"
  elif [[ $said =~ $disk_full ]]; then fault=disk how='found the disk full'
  elif [ -n "$said" ]; then fault=memory how='ran out of memory'
  elif [ "$took" -lt 60 ] && [ ! -e "$here/saved" ] && [ ! -s "$run_dir/metrics/$attempt.jsonl" ]; then
    fault=start how='crashed at its start'
  else fault=crash how=crashed
  fi
}
# What a full disk has cost a training that went on: if it died later, it died of something else.
went_on='was not saved \([0-9]+ in a row\)|What goes there is lost until it can be written again'
disk_full='No space left on device|Disk quota exceeded'
# Of cgroups (two spellings), of srun, of a Slurm without cgroups, of torch, Python and C++.
out_of_memory='oom[-_]kill event|task [0-9]+: Out Of Memory|exceeded memory limit|OutOfMemoryError|^MemoryError|bad_alloc'

own_error() { # own_error LOG   print the last error at its end that did not follow from the end of another rank
  tail -c 4096 "$1" 2>/dev/null | grep -aE '^[A-Za-z_][A-Za-z0-9_.]*(Error|Exception)(:|$)|([Ff]atal|[Ee]rror): ' |
    grep -avE "$lost_connection" |
    grep -avE '^slurmstepd[-:]|error: \*\*\* (JOB|STEP) [0-9]' | tail -n 1 # how Slurm has ended the other ranks
}
find_error() { # sets `error`, `node` and `step`: the message of the rank that failed first, and where that was; and
  # `reported`, srun's words on it. Empty if unknown
  local log rank how ended
  error='' node='' step='' reported=''
  [ "$fault" != hung ] || return 0 # clusterdp has ended the ranks: srun reports a healthy one as killed
  if [ -e "$here/error" ]; then # one of our ranks has written it
    { read -r node; read -r step; IFS= read -r error; } <"$here/error"
    : "${node:=$SLURM_JOB_NODELIST}"
    return
  fi
  ended=$([ ! -e "$out" ] || tail -c +$((out_began + 1)) "$out" | # in the order in which the ranks ended
    sed -nE '/: Terminated$/d; s/^srun: error: ([^: ]+): tasks? ([0-9]+)[^:]*: (.*)/\1 \2 \3/p')
  while read -r node rank how; do # a rank that outlives another may end before it, of a lost connection
    printf -v log "$logs/rank-%05d.out" "${rank:-0}"
    error=$(own_error "$log")
    if [ -n "$error" ] || ! tail -c 4096 "$log" 2>/dev/null | grep -qaE "$lost_connection"; then break; fi
  done <<<"$ended"
  [ -n "$node" ] || read -r node rank how <<<"$ended"
  [ -z "$node" ] || reported="srun: $node: task $rank: $how"
  : "${node:=$SLURM_JOB_NODELIST}"
  for log in "$logs"/rank-*.out; do
    case $error$how in '' | Exited*) ;; *) break ;; esac # a signal has killed that rank: the others can only follow
    error=$(own_error "$log")
  done
}
# What a rank says whose peer is gone. It is never an error of its own.
lost_connection='DistBackendError|DistNetworkError|Connection (closed|reset|refused)|Broken pipe|another (rank.s failure|failed): rank'
is_repeated() { # has the same error ended an earlier attempt, at the same step or both within a minute of the start, with no
  # newer checkpoint since, on another node if there are others? It is compared without addresses, pids, times and hosts.
  local name what was where when briefly short=no
  [ -n "$error" ] || return 1
  [ "$took" -ge 60 ] || short=yes
  what=$(sed -E "s/0x[0-9a-fA-F]+/ADDRESS/g; s/[0-9]+(\.[0-9]+){3}/HOST/g; s/$node|$HOSTNAME|$MASTER_ADDR/HOST/g
    s/[0-9]{4}-[0-9]{2}-[0-9]{2}/DATE/g; s/[0-9]+:[0-9]{2}(:[0-9]{2})?([.,][0-9]+)?/TIME/g; s/[0-9]{4,}/NUMBER/g
    s/([Pp]id|[Rr]ank|[Pp]rocess|[Tt]ask)([ =:]+)[0-9]+/\1\2NUMBER/g" <<<"$error")
  note mistake "$node
${step:--} $short
$what"
  [ ! -e "$here/saved" ] || return 1
  for name in $since; do
    was=''
    { read -r where; read -r when briefly; IFS= read -r was; } 2>/dev/null <"$run_dir/attempts/$name/mistake"
    [ "$was" = "$what" ] || continue
    [ "$short $briefly" = 'yes yes' ] || [ "$when" = "${step:-unknown}" ] || continue
    if [ "$where" = "$node" ] && [ "$(usable_nodes | wc -l)" -gt {{ nodes }} ]; then continue; fi # others are left to try
    return 0
  done
  return 1
}
