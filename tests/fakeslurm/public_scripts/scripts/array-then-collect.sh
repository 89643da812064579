#!/bin/bash
# In the manner of map and reduce: an array is submitted and waited for, then its files are gathered.
#SBATCH --ntasks=1
sbatch --wait --quiet --array=1-3 --output=/dev/null --wrap 'echo "part $SLURM_ARRAY_TASK_ID" > part.$SLURM_ARRAY_TASK_ID'
echo "the array ended with $?"
cat part.* > whole
wc -l < whole
