# Values that sbatch and srun take or refuse, and in which words: one job with each, held, so that none runs.
# needs: gpus
. ./lib.sh
sb() { run "sbatch $*" sbatch --hold --output=/dev/null "$@" --wrap=true; }
for word in --ntasks=0 --cpus-per-task=0 --ntasks-per-node=-1 --ntasks-per-node=x --ntasks=x --nodes=x --nodes=1- --nodes=2k \
  --nodes=1-1-1 --nodes=0 --gpus=x --gpus=0 --gpus-per-node=x --gres=gpu:x --mem=x --mem=16001 --tmp=x --tmp=10 --mincpus=x \
  --mincpus=9 --open-mode=x --kill-on-invalid-dep=x --gpu-bind=x --cpu-freq=x --hint=x --distribution=x --switches=x \
  --switches=1@x --time-min=x --deadline=now+1hour --deadline=x --deadline=2020-01-01 --reservation=x --licenses=x \
  --mail-type=x --mail-type=END,FAIL --export-file=x --nodefile=x --thread-spec=1 -S1 --cores-per-socket=2 \
  --sockets-per-node=2 --threads-per-core=2 --ntasks-per-core=2 --ntasks-per-socket=2 --gpus-per-socket=1 \
  --cpus-per-gpu=x --mem-per-gpu=1G --ntasks-per-gpu=2 --uid=nosuch --batch=x --bbf=x --get-user-env=L --propagate=x \
  --propagate --profile=x --profile=all --acctg-freq=x --delay-boot=5 --delay-boot=x --wait-all-nodes=1 \
  --wait-all-nodes=x --segment=2 --exclusive=x --oversubscribe --core-spec=x --network=x --mcs-label=x --prefer=x \
  --constraint=nosuch --signal=x --dependency=x --begin=x --qos=x --account=x --wckey=x --ntasks-per-node=9 --overcommit \
  --reboot --contiguous --spread-job --use-min-nodes --requeue=x --array=x --array=0-3%x --comment= --gpu-freq=x \
  --mem-bind=x --mem-bind=local --gres-flags=x --gres-flags=enforce-binding --cpu-bind=x --mpi=x --label --time=0 \
  --jobid=1 --immediate -X --mail-user=x --no-kill=off '--nodelist=n[1-' '--exclude=n[1-' --chdir=/nosuch --gres=gpu:3; do
  sb "$word"
done
sr() { run "srun $*" srun --hold "$@" true; }
for word in --ntasks=x --cpus-per-task=0 --nodes=x --time=x --mem=x --gres=tape --partition=nosuch --bogus --parsable --array=1; do
  sr "$word"
done
sa() { run "salloc $*" salloc "$@" true; }
for word in --ntasks=x --nodes=x --time=x --bogus --parsable --partition=nosuch --reservation=x; do sa "$word"; done
