#!/bin/bash -l
# In the manner of Lightning-AI/pytorch-lightning (Apache-2.0, 7f0c343), docs/source-pytorch/clouds/cluster_advanced.rst:
# a login shell, all memory of the node, a warning before the time limit, the environment named by an argument.
#SBATCH --nodes=2             # as num_nodes=
#SBATCH --gres=gpu:2
#SBATCH --ntasks-per-node=2   # as devices=
#SBATCH --mem=0
#SBATCH --time=0-02:00:00
#SBATCH --signal=SIGUSR1@90
conda activate $1
export PYTHONFAULTHANDLER=1
srun python3 train.py
