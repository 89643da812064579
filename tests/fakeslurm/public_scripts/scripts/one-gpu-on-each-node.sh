#!/bin/bash
# In the manner of small distributed runs: as many GPUs as nodes.
#SBATCH --gpus=2 -N 2 -n 4
srun -l bash -c 'echo "$SLURM_LOCALID sees $CUDA_VISIBLE_DEVICES"'
srun -l --gpus=1 -n1 -N1 bash -c 'echo "$CUDA_VISIBLE_DEVICES"'
