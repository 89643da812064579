# Runs the lines of launch.setup ($launch_setup of job.sbatch), and records those that fail. If $setup_each is `stop`,
# each of these ends the attempt.
# shellcheck shell=bash disable=SC2154 # job.sbatch has the variables
CLUSTERDP_SETUP_FAILED=''
# shellcheck disable=SC2329 # by the trap
setup_error() { # setup_error CODE COMMAND LINE DEPTH   a line of launch.setup has failed; false: no other one is run
  local said="line $3 ended with exit code $1: ${2%%$'\n'*}" ends=$setup_each
  case $-:$4 in
    *e*:2) ends=stop ;; # setup asks for that itself
    *:2) ;;
    *) set +e; return 0 ;; # within a file that setup sources
  esac
  set +e
  case $1:$2 in
    *:'eval "$launch_setup"') return 0 ;; # the last line once more
    *:'source '* | *:'. '*) (eval "set -- $2"; [ -r "$2" ] || type -P "$2") >/dev/null 2>&1 || ends=stop ;;
    12[67]:* | *:'cd '*) ends=stop ;;
  esac
  case $'\n'$CLUSTERDP_SETUP_ERRORS in *$'\n'"$said"$'\n'*) ;; *) CLUSTERDP_SETUP_ERRORS+=$said$'\n' ;; esac
  [ "$ends" != stop ] || CLUSTERDP_SETUP_FAILED="launch.setup: $said" CLUSTERDP_SETUP_CODE=$1
  [ "$ends" != stop ]
}
setup_line=$((LINENO + 1))
trap 'setup_error $? "$BASH_COMMAND" $((LINENO - setup_line)) ${#BASH_SOURCE[@]} || return' ERR
eval "$launch_setup"
