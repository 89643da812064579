#!/bin/bash
# In the manner of master and workers: another program for some ranks, from a file.
#SBATCH --ntasks=4
cat > programs <<'LIST'
0    bash -c 'echo "master of $SLURM_NTASKS"'
1-2  bash -c 'echo "worker $SLURM_PROCID is %t, number %o"'
3    bash -c 'echo "writer"; exit 4'
LIST
srun --label --multi-prog programs
echo "srun ended with $?"
