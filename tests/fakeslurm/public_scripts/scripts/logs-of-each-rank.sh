#!/bin/bash

#SBATCH --job-name=stool
#SBATCH --nodes=2
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-gpu=2
#SBATCH --time=10
#SBATCH --partition=main
#SBATCH --mem=0

#SBATCH --output=%j.stdout
#SBATCH --error=%j.stderr

#SBATCH --open-mode=append
#SBATCH --signal=USR2@120
#SBATCH --distribution=block
# In the manner of facebookresearch/lingua (BSD-3-Clause, 437d680), lingua/stool.py: directives in groups, CPUs by the
# GPU, a log of each rank.
conda shell.bash hook
export OMP_NUM_THREADS=1
mkdir -p logs/$SLURM_JOB_ID
srun -o logs/%j/%t.out -e logs/%j/%t.err -n 4 -N 2 python -u -m train config=base.yaml
