"""Keys of other tools (sbatch, torchrun, accelerate, Lightning, submitit), each with the key that clusterdp uses
instead."""

from __future__ import annotations

KEYS = {  # clusterdp's key -> its names in other tools
    "resources.nodes": "num_nodes nnodes n_nodes num_machines min_nodes max_nodes nodes_min nodes_max",
    "resources.tasks_per_node": "ntasks ntasks_per_node tasks num_tasks num_processes ranks "
    "processes_per_node workers_per_node",
    "resources.gpus_per_node": "gpus gpu num_gpus n_gpus ngpus gpus_per_job devices nproc_per_node nprocs_per_node",
    "resources.cpus_per_task": "cpus num_cpus n_cpus ncpus cpus_per_rank cpus_per_node",
    "resources.mem": "memory mem_gb mem_per_node",
    "resources.time": "walltime wall_time time_limit timelimit timeout timeout_min max_time",
    "resources.partition": "queue partitions",
    "resources.account": "project allocation",
    "resources.exclude": "exclude_nodes",
    "resources.nodelist": "nodes_list node_list hosts",
    "resources.constraint": "constraints features",
    "name": "job_name jobname experiment_name",
    "run_dir": "output_dir save_dir default_root_dir folder workspace",
    "restart.requeue": "no_requeue",
    "restart.max_crashes": "max_restarts retries max_retries",
    "sweep": "array",
    "launch.setup": "conda conda_env venv virtualenv prologue",
    "launch.env": "env_vars environment_variables export",
    "launch.modules": "module",
    "launch.container.image": "image docker docker_image apptainer singularity",
    "command": "cmd program run executable wrap args",
    "entry": "main function target entrypoint",
    "checkpoint.url": "checkpoint_dir ckpt_dir checkpoints",
    "checkpoint.start_from": "ckpt_path resume resume_from pretrained",
    "train.amp.level": "precision mixed_precision fp16 bf16",
    "train.accumulate": "accumulate_grad_batches gradient_accumulation_steps",
    "train.global_batch_size": "total_train_batch_size global_train_batch_size train_batch_size global_batch "
    "max_train_batch_size effective_batch_size elasticity",
    "train.clip_norm": "gradient_clip_val max_grad_norm",
}
# Options of sbatch that have no key of their own, and belong below resources.extra
OPTIONS = frozenset(
    "begin bell comment cpus_per_gpu deadline delay_boot dependency distribution gpu_bind gpu_freq gpus_per_socket "
    "gres_flags hint licenses mail_type mail_user mem_bind mem_per_cpu mem_per_gpu mincpus network "
    "nice ntasks_per_core ntasks_per_gpu ntasks_per_socket oversubscribe power prefer priority sockets_per_node "
    "spread_job switches threads_per_core tmp tres_per_task use_min_nodes wckey".split()
)
# Names of values that belong to the user's code, and so below params
PARAMS = frozenset(
    "epochs max_epochs num_epochs lr learning_rate batch_size weight_decay num_steps micro_batch_size "
    "train_micro_batch_size_per_gpu per_device_train_batch_size".split()
)
LOGS = frozenset("output error stdout stderr log log_dir logs log_file open_mode".split())
NOTES = {
    "resources.nodes": ": a number, a range such as 2-8, or a list such as 2,4,8",
    "resources.tasks_per_node": ": the ranks of each node",
    "resources.gpus_per_node": ": the GPUs of each node, one rank for each",
    "train.global_batch_size": ": samples of a step, on any number of ranks, in parts of the loader's batch_size",
    "sweep": ", or --sweep params.lr=1,2 on the command line",
    "launch.setup": ": lines of bash, such as `source ~/envs/torch/bin/activate`",
}
_OF = {name: key for key, names in KEYS.items() for name in names.split()}


def key_for(name: str) -> str:
    """Returns clusterdp's key for a name in another tool: `resources.nodes` for `num-nodes`. Empty for a name that no
    other tool has."""
    plain = name.lower().replace("-", "_").removeprefix("slurm_")
    if plain in PARAMS:
        return f"params.{name}"
    return f"resources.extra: {{{plain.replace('_', '-')}: ...}}" if plain in OPTIONS else _OF.get(plain, "")


def remedy_for(name: str) -> str:
    """Returns a sentence that names the key to write; empty for a name that no other tool has."""
    if name.lower() in LOGS:
        return "Leave it out: each rank has a log of its own in the run folder, which run_dir names."
    if name in ("on", "remote"):
        return "It says on which machine verbs run: write it into your site profile, ~/.config/clusterdp/site.yaml."
    key = key_for(name)
    return f"Write {key}{NOTES.get(key, '')}." if key else ""
