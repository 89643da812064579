#!/bin/bash
# In the manner of guides on binding: how each task is to see the GPUs of its node.
#SBATCH --ntasks=2 --gpus-per-node=2
see='echo "$SLURM_LOCALID sees $CUDA_VISIBLE_DEVICES"'
srun --label --gpu-bind=single:1 bash -c "$see"
srun --label --gpu-bind=map_gpu:1,0 bash -c "$see"
srun --label --gpu-bind=closest bash -c "$see"
srun --label --ntasks-per-gpu=1 bash -c "$see"
srun --label --gpus-per-task=1 --gpu-bind=none bash -c "$see"
