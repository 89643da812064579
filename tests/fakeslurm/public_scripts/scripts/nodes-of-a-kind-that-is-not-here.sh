#!/bin/bash -l
# In the manner of PrincetonUniversity/multi_gpu_training (MIT, 2e975ad),
# 04_model_parallel_with_fsdp/chess_finetune.sh: a feature that only some clusters have.
#SBATCH --output=%x-%j_%n.out
#SBATCH --gres=gpu:2
#SBATCH --constraint=gpu80
torchrun --nnodes=${SLURM_NNODES} train.py
