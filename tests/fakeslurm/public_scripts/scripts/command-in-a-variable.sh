#!/bin/bash
# In the manner of huggingface/accelerate (Apache-2.0, 16cb6eb), examples/slurm/submit_multinode.sh: directives with
# remarks behind them, logs beside the script by name and id, a command line put together in variables.
#SBATCH --job-name=launched
#SBATCH -D .
#SBATCH --output=O-%x.%j
#SBATCH --error=E-%x.%j
#SBATCH --nodes=2                   # machines
#SBATCH --ntasks-per-node=1         # a launcher on each
#SBATCH --gres=gpu:2                # of each machine
#SBATCH --cpus-per-task=8
#SBATCH --time=01:59:00             # at most
source environment.sh
first=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
launcher="accelerate launch \
    --num_processes $((SLURM_NNODES * 2)) \
    --num_machines $SLURM_NNODES \
    --main_process_ip $first \
    "
arguments=" \
    --mixed_precision fp16 \
    "
srun $launcher train.py $arguments
