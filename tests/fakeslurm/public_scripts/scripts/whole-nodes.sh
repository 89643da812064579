#!/bin/bash
# In the manner of mlfoundations/open_clip (MIT, 89fb801), docs/script_examples/stability_example.sh: whole nodes, no GPU
# asked for, --accel-bind.
#SBATCH --partition=main
#SBATCH --job-name=whole
#SBATCH --nodes 2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --output=%x-%j.out
#SBATCH --comment=some-project
#SBATCH --open-mode=append
#SBATCH --exclusive
module load openmpi
export PYTHONPATH="$PYTHONPATH:src"
srun --comment other --accel-bind=gn python -m train --data "pipe:cat {000..231}.tar -"
