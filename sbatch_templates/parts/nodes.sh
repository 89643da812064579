# The nodes of the ranks, without those in reserve.
export SLURM_JOB_NODELIST=$CLUSTERDP_NODES SLURM_NODELIST=$CLUSTERDP_NODES
export SLURM_JOB_NUM_NODES={{ nodes }} SLURM_NNODES={{ nodes }}
unset SLURM_HOSTFILE
