#!/bin/bash
# In the manner of launchers with --kill-on-bad-exit: one rank fails, the others are ended.
#SBATCH --ntasks=2
srun --kill-on-bad-exit=1 bash -c '[ $SLURM_PROCID = 1 ] && { sleep 0.5; exit 7; }; sleep 60'
echo "srun ended with $?"
srun bash -c 'exit $SLURM_PROCID'
echo "srun ended with $?"
exit 7
