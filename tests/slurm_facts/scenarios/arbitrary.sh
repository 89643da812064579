# --distribution=arbitrary with SLURM_HOSTFILE: where the tasks of a step run, and what they know of it.
# needs: 4 nodes
. ./lib.sh
submit arbitrary --job-name=arbitrary --output=arbitrary.out --nodes=4 --ntasks-per-node=2 --overcommit arbitrary.sbatch
wait_end "$JOB"
for part in pairs part turns; do show "$part" out.$part; done
