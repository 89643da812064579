# Nodes that later attempts avoid. The names of an attempt's bad nodes are in its file `avoid`. `bad` has those of all
# attempts, the newest first; `once` is a node that only the next attempt avoids.
bad='' once='' excluded_now=''
usable_nodes() { # print the nodes that are up and like those of this job, so that it could run there
  local state node shape likes
  likes=$'\n'$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format='%c|%m|%G|%f' 2>/dev/null)$'\n'
  while read -r state node shape; do
    case $state in idle | mixed | allocated | completing | planned) ;; *) continue ;; esac
{% if exclude %}
    case " $(scontrol show hostnames {{ exclude }} | tr '\n' ' ')" in *" $node "*) continue ;; esac
{% endif %}
    case $likes in *$'\n'"$shape"$'\n'*) echo "$node" ;; esac
  done < <(sinfo --noheader --Node --partition="$SLURM_JOB_PARTITION" --format='%T %N %c|%m|%G|%f' 2>/dev/null | sort -u)
}
not_launched() { # print the nodes on which srun, by what it writes here, could not launch a task: slurmd is dead there, and
  # Slurm does not know it yet
  sed -nE 's/^srun: error: Task launch for .* failed on node ([^: ]+): .*/\1/p' | sort -u | tr '\n' ' '
}
exclude() { # sets `excluded`: resources.exclude, `once` and the bad nodes; but the oldest of these are left out where fewer
  # usable nodes than the job needs would remain, for it would wait for ever
  local node usable left avoided
  excluded={% if exclude %}{{ exclude }}{% endif %}

  avoided="$once $(cat "$here/avoid" 2>/dev/null) $bad"
  [ "$avoided" != '  ' ] || return 0
  usable=$(usable_nodes)
  left=$(wc -w <<<"$usable")
  [ "$left" -gt 0 ] || return 0 # Slurm does not answer
  for node in $avoided; do
{% if nodelist %}
    case " $(scontrol show hostnames {{ nodelist }} | tr '\n' ' ')" in *" $node "*) continue ;; esac # it must be among them
{% endif %}
    case ,$excluded, in *",$node,"*) continue ;; esac
    case $'\n'$usable$'\n' in
      *$'\n'"$node"$'\n'*)
        [ "$left" -gt {{ nodes }} ] || break
        left=$((left - 1))
        ;;
    esac
    excluded=${excluded:+$excluded,}$node
  done
}
is_bad_here() { # is one of this job's nodes among `excluded`?
  local node
  while read -r node; do
    case ,$excluded, in *",$node,"*) return 0 ;; esac
  done < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  return 1
}
tell_excluded() ( # tell Slurm, after a requeue: before it, the list of a job that runs cannot be changed (22.05 to 26.05)
  trap '' TERM # it comes with the requeue, and must not end these commands
  exclude
  [ "$excluded" = "$excluded_now" ] || scontrol update JobId="${successor:-$job}" ExcNodeList="$excluded"
)
