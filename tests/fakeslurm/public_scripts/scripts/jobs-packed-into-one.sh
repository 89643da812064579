#!/bin/bash
# In the manner of job packing: several small programs side by side, each with CPUs of its own.
#SBATCH --nodes=1 --ntasks=4 --cpus-per-task=1
for i in 1 2 3 4; do
    srun --ntasks=1 --cpus-per-task=1 --exact --output=packed.$i bash -c "echo $i has \$SLURM_CPUS_ON_NODE" &
done
wait
ls packed.*
