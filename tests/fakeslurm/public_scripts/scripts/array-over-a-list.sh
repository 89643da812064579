#!/bin/bash
# In the manner of parameter sweeps in many cluster guides: each element of an array takes its line of a list.
#SBATCH --array=0-3 --output=out.%a --job-name=sweep
mapfile -t rates <<'LIST'
0.1
0.01
0.001
0.0001
LIST
rate=${rates[$SLURM_ARRAY_TASK_ID]}
echo "element $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT: $rate"
srun bash -c "echo trained with $rate > result.$SLURM_ARRAY_TASK_ID"
