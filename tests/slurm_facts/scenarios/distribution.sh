# --distribution: which task is on which node, what is said of it, and what is refused.
# needs: 2 nodes, whole cluster
. ./lib.sh; . ./lib2.sh
cat >job.sh <<'J'
#!/bin/bash
env | grep -E '^SLURM_(DIST|TASKS_PER)' | sort
who='echo $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $SLURM_DISTRIBUTION $SLURM_DIST_PLANESIZE'
for words in "" "-m plane=2" "-m cyclic" "-m block:cyclic" "-m plane=4" "-m cyclic:block,pack"; do
  echo "srun $words"; srun $words bash -c "$who" | sort -n
done
J
try() { # try SBATCH-WORDS...
  submit "$*" --output="$*.out" "$@" job.sh; wait_end "$JOB"; run "$*: output" cat "$*.out"
}
try --nodes=2 --ntasks=6 --exclusive
try --nodes=2 --ntasks=6
try --nodes=2 --ntasks=6 --exclusive --distribution=plane=2
try --nodes=2 --ntasks=6 --exclusive --distribution=block:cyclic
try --nodes=2 --ntasks=2
try --nodes=2 --ntasks=2 --distribution=block
for words in plane=2 cyclic block:cyclic 'block:*' '*'; do
  run "srun -m $words" bash -c "srun --nodes=2 --ntasks=6 -m '$words' bash -c 'echo \$SLURM_PROCID \$SLURM_NODEID \$SLURM_DISTRIBUTION \$SLURM_DIST_PLANESIZE' | sort -n"
done
for words in plane=0 plane=x plane nosuch; do run "refused: $words" srun --nodes=2 -m $words true; done
