#!/bin/bash
# In the manner of launchers that say how many GPUs in all, and on how many nodes.
#SBATCH --gpus=4
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
srun --label bash -c 'echo "GPUs $CUDA_VISIBLE_DEVICES, $SLURM_GPUS_ON_NODE here, $SLURM_GPUS in all"'
