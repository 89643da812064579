#!/bin/bash
# In the manner of scripts that work in scratch and carry results home, however they end.
#SBATCH --ntasks=1 --output=%x.log --job-name=scratch
set -euo pipefail
scratch=$(mktemp -d)
finish() { cp "$scratch"/result . && rm -rf "$scratch" && echo carried home; }
trap finish EXIT
cd "$scratch"
srun bash -c 'echo computed > result'
cd "$SLURM_SUBMIT_DIR"
srun bash -c 'exit 5'
echo never
