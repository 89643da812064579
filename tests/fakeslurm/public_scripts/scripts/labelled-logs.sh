#!/bin/bash
# In the manner of scripts that keep one log for each rank, with the rank before each line.
#SBATCH --nodes=2 --ntasks=3
srun --label --output=rank-%t.log bash -c 'echo out; echo err >&2'
srun -l -o step-%s.log -e errors-%t.log bash -c 'echo out; echo err >&2'
srun --output=None echo unseen
srun --label --output=1 echo only one
