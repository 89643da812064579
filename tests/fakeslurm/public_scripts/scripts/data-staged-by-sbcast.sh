#!/bin/bash
# In the manner of site guides on staging: the executable and its data are copied to each node before the step starts.
#SBATCH --nodes=2 --ntasks-per-node=1
stage=/tmp/stage.$SLURM_JOB_ID
srun mkdir -p $stage
printf '#!/bin/bash\necho "rank $SLURM_PROCID reads $(cat $1)"\n' > tool
chmod 750 tool
echo samples > data
sbcast --force data $stage/data
sbcast -fp tool $stage/tool
srun --label $stage/tool $stage/data
srun rm -rf $stage
