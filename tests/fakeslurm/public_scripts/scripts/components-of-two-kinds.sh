#!/bin/bash
# In the manner of coupled models: a heterogeneous job, whose components are ranked together in one step.
#SBATCH --ntasks=1 --cpus-per-task=2
#SBATCH hetjob
#SBATCH --nodes=2 --ntasks=2
srun --label --het-group=0,1 bash -c 'echo "rank $SLURM_PROCID of $SLURM_NTASKS"'
srun --het-group=1 bash -c 'echo "worker $SLURM_PROCID"'
