# --ntasks-per-gpu: how many GPUs follow from the tasks, how many tasks from the GPUs, and what does not go with it.
# needs: 2 nodes, gpus
. ./lib.sh; . ./lib2.sh
cat >job.sh <<'J'
#!/bin/bash
env | grep -E '^SLURM_(NTASKS|NPROCS|TASKS_PER|GPUS|JOB_GPUS|TRES)' | sort
srun bash -c 'echo $SLURM_PROCID $SLURM_NODEID $CUDA_VISIBLE_DEVICES' | sort
J
try() { # try SBATCH-WORDS...
  submit "$*" --output="$*.out" "$@" job.sh
  [ -n "$JOB" ] || return 0
  wait_end "$JOB"
  field "$*: scontrol" "$JOB" NumNodes NumCPUs NumTasks TresPerJob TresPerNode TresPerTask TresBind
  run "$*: output" cat "$*.out"
}
try --ntasks=4 --ntasks-per-gpu=2
try --ntasks=4 --ntasks-per-gpu=2 --nodes=2
try --ntasks-per-gpu=2 --nodes=2
try --ntasks=4 --ntasks-per-gpu=1
try --gpus=2 --ntasks-per-gpu=2
try --gpus-per-node=2 --ntasks-per-gpu=1 --nodes=2
try --gpus-per-node=1 --ntasks-per-gpu=2 --nodes=2
try --ntasks=4 --gpus=2 --ntasks-per-gpu=2
try --ntasks=4 --gpus=4 --ntasks-per-gpu=2
try --ntasks=4 --ntasks-per-gpu=2 --cpus-per-gpu=3
try --ntasks=4 --ntasks-per-gpu=2 --cpus-per-task=2
try --ntasks=3 --ntasks-per-gpu=2
try --ntasks=2 --ntasks-per-gpu=2 --ntasks-per-node=1 --nodes=2
try --ntasks=4 --ntasks-per-gpu=2 --gpus-per-task=1
try --ntasks-per-gpu=2
run "srun" bash -c "srun --ntasks=4 --ntasks-per-gpu=2 bash -c 'echo \$SLURM_PROCID \$CUDA_VISIBLE_DEVICES' | sort"
run "srun: tasks from GPUs" bash -c "srun --gpus=2 --ntasks-per-gpu=2 bash -c 'echo \$SLURM_PROCID \$CUDA_VISIBLE_DEVICES' | sort"
