#!/bin/bash
# In the manner of stas00/ml-engineering (CC-BY-SA-4.0, 744d01e), orchestration/slurm/launchers/torchrun-launcher.slurm:
# a command line whose variables each task fills in, options of srun in a variable, all output through tee.
#SBATCH --job-name=filled-in
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1          # one launcher on each node
#SBATCH --cpus-per-task=8            # all
#SBATCH --gres=gpu:2
#SBATCH --time=0:10:00
#SBATCH --exclusive
#SBATCH --partition=main
#SBATCH --output=%x-%j.out
set -eo pipefail
first=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
command="torchrun --nnodes $SLURM_NNODES --node_rank \$SLURM_PROCID --rdzv_endpoint $first:6000 --role \$SLURMD_NODENAME: "
options=" \
    --wait=60 \
    --kill-on-bad-exit=1 \
    --jobid $SLURM_JOB_ID \
    "
srun $options bash -c "$command train.py" 2>&1 | tee -a log.txt
srun $options bash -c "[ \$SLURM_PROCID = 0 ] || exit 3; sleep 300" 2>&1 | tee -a log.txt
echo "not reached"
