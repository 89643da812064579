#!/bin/bash
# In the manner of parameter servers: the first node has another program than the others, which --exclude names.
#SBATCH --nodes=3 --ntasks-per-node=1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --nodes=1 --ntasks=1 --nodelist="$head" bash -c 'echo "head $SLURM_NODEID"'
srun --nodes=2 --ntasks=2 --exclude="$head" --label bash -c 'echo "other $SLURM_PROCID of $SLURM_NTASKS"'
srun --relative=1 --nodes=1 --ntasks=1 bash -c 'echo "second $SLURM_STEP_NUM_NODES"'
