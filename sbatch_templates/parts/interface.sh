# gloo uses the interface that this host's name resolves to, and hangs where that is 127.0.1.1. So name the interface
# that leads to MASTER_ADDR.
if [ -z "${GLOO_SOCKET_IFNAME-}" ]; then
  address=$MASTER_ADDR
  case $address in *[!0-9.]*) read -r address _ <<<"$(getent ahostsv4 "$MASTER_ADDR" 2>/dev/null)" ;; esac
  case ${address:=$MASTER_ADDR} in
    127.*) case $OSTYPE in darwin*) name=lo0 ;; *) name=lo ;; esac ;;
    *)
      read -r _ name _ <<<"$(ip -o addr show to "$address" 2>/dev/null)"
      if [ -z "$name" ]; then
        route=$(ip -o route get "$address" 2>/dev/null)
        case $route in *" dev "*) name=${route#* dev } name=${name%% *} ;; esac
      fi
      ;;
  esac
  [ -z "$name" ] || export GLOO_SOCKET_IFNAME=$name
fi
