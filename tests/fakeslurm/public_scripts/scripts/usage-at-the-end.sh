#!/bin/bash
# In the manner of scripts that report what their steps use, with sstat, before they end.
#SBATCH --ntasks=2
srun bash -c 'until [ -e enough ]; do sleep 0.1; done' &
until squeue -h -s -j $SLURM_JOB_ID -o %i | grep -q '\.0$'; do sleep 0.1; done
sleep 1
sstat --jobs=$SLURM_JOB_ID.0 --noheader --parsable2 --format=JobID,NTasks
sstat $SLURM_JOB_ID.batch -n -P -o JobID,NTasks
sstat -n -P -o JobID $SLURM_JOB_ID
> enough
wait
