#!/bin/bash
# In the manner of containers without a plug-in: the runtime is a program like any other, started by srun.
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=1
cat > apptainer <<'STUB'
#!/bin/bash
echo "apptainer $1 $2 with GPU $CUDA_VISIBLE_DEVICES"
shift 3
exec "$@"
STUB
chmod +x apptainer
export PATH=$PWD:$PATH
srun --label apptainer exec --nv image.sif bash -c 'echo "rank $SLURM_PROCID inside"'
