#!/bin/bash
# In the manner of tools that install their job scripts: sbatch finds the name on PATH, whatever the folder is.
#SBATCH --ntasks=1
mkdir tools
printf '#!/bin/bash\n#SBATCH --output=found.log --job-name=tool\necho "found, with $*"\n' > tools/prepare-data
PATH=$PWD/tools:$PATH sbatch --quiet --wait prepare-data --epochs 3
cat found.log
sbatch prepare-data-again 2>&1
