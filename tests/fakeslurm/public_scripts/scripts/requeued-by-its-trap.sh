#!/bin/bash
# In the manner of checkpointing guides: the script requeues its job when a signal warns it, and the next attempt goes on.
#SBATCH --requeue --open-mode=append --output=log --signal=B:USR1@60 --time=30
trap 'echo warned; scontrol requeue $SLURM_JOB_ID; sleep 60' USR1
echo "attempt ${SLURM_RESTART_COUNT:-0}"
if [ -z "$SLURM_RESTART_COUNT" ]; then
    echo 50 > checkpoint
    kill -USR1 $$
    sleep 60
fi
echo "goes on at $(cat checkpoint)"
