#!/usr/bin/env bash
# In the manner of eth-cscs/cscs-docs (80abed1, Creative Commons), docs/running/slurm.md, "multiple jobs per node": steps
# in the background, each with a GPU of its own; one more than there are GPUs has to wait.
#SBATCH --exclusive --mem=15G
#SBATCH -N1
step() { srun -N1 --ntasks-per-node=1 --exclusive --gpus-per-task=1 --cpus-per-gpu=2 --mem=4G --output "out-%J.log" "$@"; }
tell='echo step $SLURM_STEP_ID GPU $CUDA_VISIBLE_DEVICES > at.$SLURM_STEP_ID; until [ -e end.$SLURM_STEP_ID ]; do sleep 0.1; done'
step bash -c "$tell" &
until [ -e at.0 ]; do sleep 0.1; done
step bash -c "$tell" &
until [ -e at.1 ]; do sleep 0.1; done
step bash -c "$tell" &
until scontrol show step | grep -q PENDING; do sleep 0.1; done
ls at.*
> end.0
until [ -e at.2 ]; do sleep 0.1; done
touch end.1 end.2
wait
