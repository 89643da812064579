#!/bin/bash
# In the manner of mila-iqia/mila-docs (MIT-0, 12229ef), docs/examples/distributed/multi_node/job.sh: memory
# by the GPU, a step that brings data to each node once, then one of all tasks.
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-task=1
#SBATCH --mem-per-gpu=2G
#SBATCH --time=00:15:00
set -e
srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 bash -c 'mkdir -p data/$SLURM_NODEID; echo "node $SLURM_NODEID has it"'
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun uv run python train.py
