#!/usr/bin/env bash
# A job that requeues itself at SIGTERM cannot be cancelled: scancel ends it, and it is in the queue again.
#
# Version:   Slurm 22.05.8-4+deb12u3 (Debian 12), one node, without munge and accounting. Needs root; elsewhere exit 77.
# Guess:     scancel marks the job as cancelled, so `scontrol requeue` of it fails, or does nothing.
# Behaviour: scancel sends TERM, and the job is COMPLETING until its processes have ended. A requeue in this time exits with
#            0 and wins over the cancellation: PENDING, one restart more, started again after the usual two minutes.
# Seen 2026-11-29: after scancel
#            a plain script: CANCELLED, Restarts=0; one that requeues itself at TERM: PENDING, Restarts=1, requeue exit 0
# Matters:   `trap 'scontrol requeue $SLURM_JOB_ID' TERM` is the usual recipe against preemption. Before it requeues, a
#            script must look: COMPLETING without Reason=TimeLimit is a cancellation (or Slurm requeues by itself).
set -euo pipefail
version=22.05.8-4+deb12u3
if [ "$(id -u)" != 0 ] || ! grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release; then
  echo "this needs root on Debian 12"
  exit 77
fi
dir=$(mktemp -d)
finish() {
  for pid in "$dir"/slurm*.pid; do
    if [ -s "$pid" ]; then kill "$(cat "$pid")" || true; fi
  done 2>/dev/null
  sleep 2
  rm -rf "$dir"
}
trap finish EXIT

mkdir -p "$dir"/{apt/archives,lists,root,state,spool}/partial
apt=(apt-get -qq -o Dir::State::Lists="$dir/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$dir/apt"
  -o APT::Sandbox::User=root -o Debug::NoLocking=1)
"${apt[@]}" update
"${apt[@]}" install --yes --download-only --no-install-recommends "slurmctld=$version" "slurmd=$version" \
  "slurm-client=$version" >/dev/null
for package in "$dir"/apt/archives/{slurm,lib}*.deb; do
  case ${package##*/} in libc6_* | libc-bin_*) ;; *) dpkg-deb -x "$package" "$dir/root" ;; esac
done
machine=$(uname -m)-linux-gnu
plugins=$dir/root/usr/lib/$machine/slurm-wlm
export LD_LIBRARY_PATH=$plugins:$dir/root/usr/lib/$machine:$dir/root/lib/$machine
export PATH=$dir/root/usr/bin:$dir/root/usr/sbin:$PATH SLURM_CONF=$dir/slurm.conf
for program in "$dir"/root/usr/sbin/*-wlm; do
  if [ -e "$program" ]; then ln -s "$program" "${program%-wlm}"; fi
done

port=$((20000 + RANDOM % 5000))
cat >"$SLURM_CONF" <<CONF
ClusterName=finding
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/none
CredType=cred/none
PluginDir=$plugins
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=4
PartitionName=main Nodes=ALL Default=YES State=UP
CONF
slurmctld -c
slurmd -N n1 -d "$dir/root/usr/sbin/slurmstepd"

wait_for() { # PATTERN JOB: until scontrol shows it
  for _ in $(seq 300); do
    if scontrol show job "$2" | grep -q "JobState=\($1\)"; then return; fi
    sleep 0.5
  done
  cat "$dir"/slurm*.log >&2
  exit 1
}

cancel() { # WHAT SCRIPT
  printf '#!/bin/bash\n%s\ntouch %s\nsleep 300 & wait\n' "$2" "$dir/started" >"$dir/job.sh"
  rm -f "$dir/started"
  job=$(sbatch --parsable --output=/dev/null "$dir/job.sh")
  wait_for RUNNING "$job"
  until [ -e "$dir/started" ]; do sleep 0.2; done
  scancel "$job"
  wait_for 'CANCELLED\|PENDING' "$job"
  shown=$(scontrol show job "$job")
  echo "$1: $(grep -o 'JobState=[A-Z]*' <<<"$shown") $(grep -o 'Restarts=[0-9]*' <<<"$shown")"
  scontrol hold "$job" 2>/dev/null || true
}

for _ in $(seq 120); do
  if [ "$(sinfo -h -o %t 2>/dev/null)" = idle ]; then break; fi
  sleep 0.5
done
cancel "a plain script" : | tee "$dir/seen"
# shellcheck disable=SC2016
cancel "a script that requeues itself at TERM" \
  "trap 'scontrol requeue \$SLURM_JOB_ID; echo \$? >$dir/code; exit' TERM" | tee -a "$dir/seen"
echo "its scontrol requeue: exit $(cat "$dir/code")" | tee -a "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: a requeue during scancel is not what this file states"; exit 1; }
a plain script: JobState=CANCELLED Restarts=0
a script that requeues itself at TERM: JobState=PENDING Restarts=1
its scontrol requeue: exit 0
EXPECTED
