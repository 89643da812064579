#!/bin/bash
# In the manner of jobs of one name that must not overlap: --dependency=singleton.
#SBATCH --ntasks=1
sbatch --quiet --job-name=single --output=/dev/null --wrap 'sleep 1; date +%s%N > first'
sbatch --quiet --job-name=single --output=/dev/null --dependency=singleton --wait --wrap 'date +%s%N > second'
[ "$(cat second)" -gt "$(cat first)" ] && echo "in order"
rm first second
