#!/bin/bash
# In the manner of staging that asks first: sbcast overwrites nothing unless it is told to, and names what is wrong.
#SBATCH --nodes=2
stage=/tmp/staged.$SLURM_JOB_ID
mkdir $stage
echo new > data
echo old > $stage/data
sbcast data $stage/data || echo "refused with $?"
cat $stage/data
sbcast -f data $stage/data && cat $stage/data
sbcast -f data $stage/missing/data || echo "refused with $?"
sbcast -f nothing $stage/data || echo "refused with $?"
sbcast -f data $stage/ || echo "refused with $?"
sbcast -f data relative && ls relative
rm -r $stage
