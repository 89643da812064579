#!/bin/bash
# In the manner of scripts that keep a record of how they ran: the script, the job, the step, changed on the way.
#SBATCH --nodes=2 --ntasks=2 --comment=mine --time=20
scontrol write batch_script "$SLURM_JOB_ID" - | tail -n 1
scontrol update job "$SLURM_JOB_ID" comment=changed
scontrol show job "$SLURM_JOB_ID" | grep -oE '(Comment|TimeLimit|NumNodes|NumTasks)=\S+'
squeue -h -j "$SLURM_JOB_ID" -o '%D %C %l %k'
srun --job-name=counted squeue -h -s -j "$SLURM_JOB_ID" -o %j | sort -u
echo last
