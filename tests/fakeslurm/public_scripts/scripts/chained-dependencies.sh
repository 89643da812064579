#!/bin/bash
# In the manner of pipelines: preprocess, train, and a last job that cleans up whatever became of them.
#SBATCH --ntasks=1
submit() { sbatch --parsable --output=/dev/null "$@"; }
prepare=$(submit --hold --wrap 'echo prepared > 1.prepared')
train=$(submit --dependency=afterok:$prepare --wrap 'echo trained > 2.trained; exit 3')
never=$(submit --dependency=afterok:$train --kill-on-invalid-dep=yes --wrap 'echo evaluated > 3.evaluated')
report=$(submit --dependency=afternotok:$train --wrap 'echo reported > 4.reported')
scontrol release $prepare
sbatch --quiet --wait --output=/dev/null --dependency=afterany:$prepare:$train:$report --wrap 'echo cleaned > 5.cleaned'
until [ -z "$(squeue -h -j $never -o %i 2>/dev/null)" ]; do sleep 0.2; done
squeue -h -t all -j $never,$report -o '%T %r'
