# What a task of the ranks' step does before it becomes the program. Sets GLOO_SOCKET_IFNAME: gloo uses the interface that
# the name of this host resolves to, and hangs where that is 127.0.1.1. So this names the one that leads to MASTER_ADDR.
# shellcheck shell=bash
if [ -z "${GLOO_SOCKET_IFNAME-}" ]; then
  address=$MASTER_ADDR name=
  case $address in *[!0-9.]*) address=$(getent ahostsv4 "$address" 2>/dev/null) address=${address%%[[:space:]]*} ;; esac
  case ${address:=$MASTER_ADDR} in
    127.*) case $OSTYPE in darwin*) name=lo0 ;; *) name=lo ;; esac ;;
    *)
      route=$(ip -o addr show to "$address" 2>/dev/null) name=${route#*: } name=${name%%[[:space:]]*}
      [ -n "$name" ] || route=$(ip -o route get "$address" 2>/dev/null)
      case $name$route in *" dev "*) name=${route#* dev } name=${name%% *} ;; esac
      # Without the program ip: the longest network of this node that has the address.
      [ -n "$name" ] || name=$({
        IFS=. read -r -a byte < <(echo "$address")
        number=$((((byte[3] * 256 + byte[2]) * 256 + byte[1]) * 256 + byte[0])) longest=-1
        while read -r device network _ _ _ _ _ mask _; do
          [ "$mask" = Mask ] || ((mask = 16#$mask, (number & mask) != 16#$network || mask <= longest)) ||
            name=$device longest=$mask
        done </proc/net/route
        echo "$name"
      } 2>/dev/null)
      ;;
  esac
  [ -z "$name" ] || export GLOO_SOCKET_IFNAME=$name
fi

# The ranks of a node come from one process (launch.fork_server).
[ -z "${CLUSTERDP_FORK_SERVER-}" ] || set -- "$1" -I -S "${0%/*}/batch/nodes/task.py" "$@"
