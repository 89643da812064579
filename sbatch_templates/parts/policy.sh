# What follows when an attempt has ended, by the cause (which attempts/*/cause names): how often the run goes on after such
# an end (-: always), the least seconds until the next attempt begins (twice as many each time in a row), and whether later
# attempts avoid the node. From `crash` on they are faults, which have restart.max_crashes as a common limit besides.
policies='
{% for policy in policies %}
{{ policy }}
{% endfor %}
'
policy() { # policy CAUSE   sets `limit`, `wait_s` and `avoid`
  local cause
  while read -r cause limit wait_s avoid; do
    [ "$cause" != "$1" ] || return 0
  done <<<"$policies"
  limit=- wait_s=0 avoid=no
}
is_fault() {
  case $1 in crash | start | memory | hung | disk) ;; *) false ;; esac
}
count() { # count CAUSE ADD   note that one more attempt has ended so, after ADD seconds
  ended="$ended $1" attempts=$((attempts + 1)) spent=$((spent + $2))
  ! is_fault "$1" || faults=$((faults + 1))
}
exhausted() { # exhausted CAUSE [1]   may no attempt follow such an end? `why` is the limit. 1: this end is not counted yet
  local more=${2-0} times=${2-0} cause faults=$faults
  policy "$1"
  for cause in $ended; do [ "$cause" != "$1" ] || times=$((times + 1)); done
  ! is_fault "$1" || faults=$((faults + more))
  if is_fault "$1" && [ "$faults" -gt {{ max_crashes }} ]; then
    why="$faults fault(s), where restart.max_crashes is {{ max_crashes }}"
  elif [ "$limit" != - ] && [ "$times" -gt "$limit" ]; then
    why="$times attempt(s) that ended so ($1), where restart.${1//-/_}.limit is $limit"
{% if max_attempts %}
  elif [ $((attempts + more)) -ge {{ max_attempts }} ]; then
    why="$((attempts + more)) attempt(s), where restart.max_attempts is {{ max_attempts }}"
{% endif %}
{% if max_hours %}
  elif [ "$spent" -ge {{ (max_hours * 3600) | int }} ]; then
    why="$((spent / 3600)) allocated hours without a newer checkpoint, where restart.max_hours is {{ max_hours }}"
{% endif %}
  else
    return 1
  fi
}
pause() { # pause CAUSE SINCE   wait until an attempt may begin that follows such an end, which was at the time SINCE
  local cause left=0
  policy "$1"
  for cause in $ended; do
    if [ "$cause" != "$1" ]; then left=0; elif [ "$left" = 0 ]; then left=$wait_s; else left=$((left * 2)); fi
  done
  [ "$left" -le 3600 ] || left=3600
  left=$((left + $2 - ${EPOCHSECONDS-$(date +%s)}))
  [ "$left" -gt 0 ] || return 0
  echo "clusterdp: restart.${1//-/_}.wait_s: this attempt begins in $left s." >&2
  sleep "$left" &
  wait $! # returns at a TERM, unlike `sleep` in the foreground
}
