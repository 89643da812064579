#!/bin/bash
# In the manner of two-stage sweeps: each element of the second array waits for its own of the first; one fails.
#SBATCH --ntasks=1
first=$(sbatch --parsable --hold --array=0-2 --output=/dev/null --wrap 'exit $((SLURM_ARRAY_TASK_ID == 1))')
second=$(sbatch --parsable --array=0-2 --dependency=aftercorr:$first --output=/dev/null --wrap '> second.$SLURM_ARRAY_TASK_ID')
scontrol release $first
until [ -e second.0 ] && [ -e second.2 ]; do sleep 0.2; done
until [ "$(squeue -h -r -j $second -o %r | sort -u)" = DependencyNeverSatisfied ]; do sleep 0.2; done
squeue -h -r -j $second -o '%K %T %r'
scancel $second
