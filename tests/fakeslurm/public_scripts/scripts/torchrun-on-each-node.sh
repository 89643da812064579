#!/bin/bash
# In the manner of pytorch/examples (BSD-3-Clause, 77f55b9), distributed/ddp-tutorial-series/slurm/sbatch_run.sh, and of
# pytorch/torchtitan (BSD-3-Clause, b5bcd76), multinode_trainer.slurm: an address asked of the first node by a step.
#SBATCH --job-name=agents

#SBATCH --nodes=4

#SBATCH --ntasks=4
#SBATCH --gpus-per-task=2
#SBATCH --cpus-per-task=4
hosts=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )
address=$(srun --nodes=1 --ntasks=1 -w "${hosts[0]}" hostname --ip-address)
echo "nodes ${#hosts[@]}, address $address"
dcgmi profile --pause
srun torchrun --nnodes 4 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint "$address:29500" train.py "$@"
dcgmi profile --resume
