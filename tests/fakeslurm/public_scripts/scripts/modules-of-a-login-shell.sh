#!/bin/bash -l
# In the manner of NERSC/nersc-dl-multigpu (no licence stated, b4924ef), submit_batch_modules.sh: a login shell, short
# options, and tasks that read their ranks from Slurm's variables in a shell of their own.
#SBATCH --time=00:10:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH -J modules
#SBATCH -o module-%j.out
module load pytorch
set -x
srun -l \
    bash -c "
    export RANK=\$SLURM_PROCID LOCAL_RANK=\$SLURM_LOCALID WORLD_SIZE=\$SLURM_NTASKS
    python train.py --rank \$RANK
    "
