#!/bin/bash
# In the manner of chunked sweeps: every second index, one element at a time, each works on a range of its own.
#SBATCH --array=1-5:2%1
#SBATCH --output=chunk-%a.log
first=$(((SLURM_ARRAY_TASK_ID - 1) * 10))
last=$((first + 10 * SLURM_ARRAY_TASK_STEP - 1))
echo "$first to $last, of $SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX"
