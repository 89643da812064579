# Heterogeneous jobs with --ntasks-per-node: what the script knows of the numbers of tasks, and how many srun starts.
# needs: 3 nodes
. ./lib.sh; . ./lib2.sh
cat >job.sh <<'J'
#!/bin/bash
env | grep -E '^SLURM_(NTASKS|NPROCS|TASKS_PER|NNODES)' | grep -v PACK | sort
srun --het-group=0,1 bash -c 'echo both $SLURM_PROCID $SLURM_NTASKS' | sort
srun --het-group=1 bash -c 'echo one $SLURM_PROCID $SLURM_NTASKS' | sort
srun bash -c 'echo plain $SLURM_PROCID $SLURM_NTASKS' | sort
J
try() { # try SBATCH-WORDS...
  submit "$*" --output="$*.out" "$@" job.sh; wait_end "$JOB"; run "$*: output" cat "$*.out"
}
try --nodes=1 : --nodes=2 --ntasks-per-node=2
try --nodes=1 --ntasks-per-node=2 : --nodes=1 --ntasks=1
try --ntasks=2 --ntasks-per-node=2 : --ntasks=3
try --nodes=1 --ntasks-per-node=1 : --nodes=2 --ntasks=4 --ntasks-per-node=2
