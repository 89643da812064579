#!/bin/bash
# In the manner of GNU parallel as cluster guides use it: more tasks than CPUs, each a step of one CPU.
#SBATCH --ntasks=2 --cpus-per-task=1
seq 5 | xargs -P "$SLURM_NTASKS" -I{} srun --ntasks=1 --nodes=1 --exact --quiet bash -c 'echo "task {}" > done.{}'
ls done.* | wc -l
