#!/bin/bash
#
# In the manner of NVIDIA/NeMo-Run (Apache-2.0, 0c49127), test/core/execution/artifacts/group_slurm.sh: several commands
# as steps in the background, watched by their process ids; when one ends the others have to.
#
# Parameters
#SBATCH --gpus-per-node=2
#SBATCH --job-name=account-group.pair-0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output=./sbatch-group-%j.out
#SBATCH --time=00:30:00
export PYTHONUNBUFFERED=1 SLURM_UNBUFFEREDIO=1
options="--wait=60 --kill-on-bad-exit=1 --overlap"
srun --output ./server-%j-${SLURM_RESTART_COUNT:-0}.out $options bash -c '> up.$SLURM_PROCID; until [ -e stop ]; do sleep 0.1; done' & pids[0]=$!
until [ -e up.0 ] && [ -e up.1 ]; do sleep 0.1; done
srun --output ./client-%j-${SLURM_RESTART_COUNT:-0}.out $options -n1 bash ./missing.sh & pids[1]=$!
while ps -p ${pids[0]} > /dev/null && ps -p ${pids[1]} > /dev/null; do sleep 0.1; done
wait ${pids[1]}
code=$?
> stop
wait ${pids[0]}
echo "exited with code $code"
exit $code
