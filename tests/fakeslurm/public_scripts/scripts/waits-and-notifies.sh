#!/bin/bash
# In the manner of sites whose nodes must boot first: the script waits for its nodes, and leaves a note in its output.
#SBATCH --nodes=2
scontrol wait_job "$SLURM_JOB_ID"
scontrol notify "$SLURM_JOB_ID" about to start
until grep -q 'error: about to start' slurm-"$SLURM_JOB_ID".out; do sleep 0.1; done
scontrol notify 4294967 nobody || echo "refused with $?"
srun --ntasks=2 true
