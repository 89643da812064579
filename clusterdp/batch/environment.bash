# Brings launch.environment ($archive) to the nodes of the job: sbcast sends it once, and each node unpacks it into
# $CLUSTERDP_ENVIRONMENT. The program below removes it before the job leaves its nodes.
# shellcheck shell=bash disable=SC2154 # job.sbatch has the archive
export CLUSTERDP_ENVIRONMENT=/tmp/clusterdp-$UID-${SLURM_JOB_ID:-0}
on_each_node() { # on_each_node LINES   $0 is the folder of the environment, $1 the size of the archive
  srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=1 --overlap \
    --mem=0 --gres=none --mpi=none --export=ALL --kill-on-bad-exit=1 --quiet \
    bash -c "$1" "$CLUSTERDP_ENVIRONMENT" "$(wc -c <"$archive")"
}
# Nodes of the fake cluster may share /tmp: the first one unpacks, and the others wait for it. sbcast leaves a part behind
# when it fails, so the size is compared.
{
  on_each_node 'mkdir -m 700 -p "$0" && [ -O "$0" ] && [ ! -L "$0" ] && rm -rf "$0/.unpacking" "$0/.whole" "$0/.archive"' &&
    sbcast --force "$archive" "$CLUSTERDP_ENVIRONMENT/.archive" &&
    on_each_node 'cd "$0" || exit
      until [ -e .whole ]; do
        mkdir .unpacking 2>/dev/null || { sleep 0.2; continue; }
        [ "$(wc -c <.archive)" -eq "$1" ] && tar --no-same-owner -xf .archive && rm .archive &&
          { [ ! -x bin/conda-unpack ] || bin/python bin/conda-unpack; } && bin/python -c "" && : >.whole || exit
      done'
} || CLUSTERDP_SETUP_FAILED="launch.environment: $archive cannot be unpacked on all nodes: see the lines above. It needs bin/python, and room in /tmp."
export PATH=$CLUSTERDP_ENVIRONMENT/bin:$PATH
