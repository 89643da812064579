#!/bin/bash
# In the manner of CSCfi/pytorch-ddp-examples (MIT, 4467e84), run-ddp-gpu8.sh: GPUs by their type, --mem=0.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --mem=0
#SBATCH --time=15
#SBATCH --gres=gpu:v100:2
srun torchrun train.py
