#!/bin/bash
# In the manner of PrincetonUniversity/multi_gpu_training (MIT, 2e975ad), 02_pytorch_ddp/job.slurm: one task
# for each GPU, the world's size counted from Slurm's variables, mails, modules.
#SBATCH --job-name=ranks         # short
#SBATCH --nodes=2                # count
#SBATCH --ntasks-per-node=2      # tasks
#SBATCH --cpus-per-task=4        # threads
#SBATCH --mem=8G                 # on each node
#SBATCH --gres=gpu:2             # on each node
#SBATCH --time=00:05:00          # limit (HH:MM:SS)
#SBATCH --mail-type=begin
#SBATCH --mail-type=end
export MASTER_PORT=29500 WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
echo "a world of $WORLD_SIZE at $MASTER_ADDR"
module purge
module load anaconda3
conda activate torch
srun python train.py --epochs=2
