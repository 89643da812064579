#!/bin/bash
# In the manner of ray-project/ray (Apache-2.0, 20ec6cb), doc/source/cluster/doc_code/slurm-basic.sh: a service on the
# first node and one on each other, as steps in the background that end with the job.
#SBATCH --job-name=service
#SBATCH --cpus-per-task=5
#SBATCH --mem-per-cpu=1GB
#SBATCH --nodes=3
#SBATCH --tasks-per-node=1
#SBATCH --time=00:30:00
all=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
all=($all)
head=${all[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address)
[[ "$address" == *" "* ]] && address=${address%% *}
serve='ray start $0 --num-cpus $SLURM_CPUS_PER_TASK; > up.$SLURM_STEP_ID; sleep 300'
srun --nodes=1 --ntasks=1 -w "$head" bash -c "$serve" --head &
until [ -e up.1 ]; do sleep 0.1; done
for ((i = 1; i < SLURM_JOB_NUM_NODES; i++)); do
    srun --nodes=1 --ntasks=1 -w "${all[$i]}" bash -c "$serve" "--address $address:6379" &
    until [ -e up.$((i + 1)) ]; do sleep 0.1; done
done
python -u train.py "$SLURM_CPUS_PER_TASK"
