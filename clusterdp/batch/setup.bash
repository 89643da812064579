# Records the lines of launch.setup that fail. job.sbatch sources this before them; with `stop`, each ends the attempt.
export CLUSTERDP_SETUP_FAILED='' CLUSTERDP_SETUP_CODE=0 CLUSTERDP_SETUP_ERRORS=''
setup_each=${1-no}
# shellcheck disable=SC2329 # by the trap
setup_error() { # setup_error CODE COMMAND LINE DEPTH   a line of launch.setup has failed; false: no other one is run
  local said="line $3 ended with exit code $1: ${2%%$'\n'*}" ends=$setup_each
  case $-:$4 in
    *e*:2) ends=stop ;; # setup asks for that itself
    *:2) ;;
    *) set +e; return 0 ;; # within a file that setup sources, or the last line once more
  esac
  set +e
  case $1:$2 in
    *:'source '* | *:'. '*) (eval "set -- $2"; [ -r "$2" ] || type -P "$2") >/dev/null 2>&1 || ends=stop ;;
    12[67]:* | *:'cd '*) ends=stop ;;
  esac
  case $'\n'$CLUSTERDP_SETUP_ERRORS in *$'\n'"$said"$'\n'*) ;; *) CLUSTERDP_SETUP_ERRORS+=$said$'\n' ;; esac
  [ "$ends" = no ] || CLUSTERDP_SETUP_FAILED="launch.setup: $said" CLUSTERDP_SETUP_CODE=$1
  [ "$ends" = no ]
}
trap 'setup_error $? "$BASH_COMMAND" $LINENO ${#BASH_SOURCE[@]} || return' ERR
