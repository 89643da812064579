"""The table of failures that `clusterdp why` knows. The first match counts: signatures for special cases come first.

A new signature needs a line or two of a real output in docs/tools/failure_examples.py. The tests check that each
example is matched by its own signature, and by no earlier one. `pattern` is a Python regular expression; an error's
line is searched first.
"""

from __future__ import annotations

from clusterdp.operate.why.signature import Signature

GPU_HARDWARE = (
    "It is the node, not the program. Tell your site. `restart.crash.avoid_node=true` makes the next attempts avoid "
    "it, and launch.preflight looks at each node before the start."
)
MORE_MEMORY = (
    "Ask for more with resources.mem, or use less: fewer num_workers, smaller prefetch_factor, data that is not "
    "copied into each worker."
)
# The name with which a shell prints an error: bash's own name, or the name of the script text that a rank runs
SHELL = r"(?:bash|sh|task|agent|worker|/\S+)"
WORDS_OF_A_SHELL = r"cd|source|\.|export|set|unset|ulimit|umask|module|exec|eval|alias|trap|if|for|while|conda|ml"
SIGNATURES = (
    # --- messages that only another rank's failure can cause
    Signature(
        "another-rank",
        r"^clusterdp: .*another(?: rank's failure| failed): rank \d+: |^\S*LostRanks: |^clusterdp: .*: rank 0 is gone",
        "another rank has failed",
        "See that rank.",
        consequence=True,
    ),
    Signature(
        "step-cancelled",
        r"\*\*\* (?:STEP|JOB) \S+ ON \S+ (?:CANCELLED AT \S+(?: DUE TO TASK FAILURE| DUE to SIGNAL \w+)?|"
        r"FAILED \(non-zero exit code[^*]*) \*\*\*",
        "Slurm ended the rank because another had failed or the job was cancelled",
        "See the other ranks.",
        consequence=True,
    ),
    Signature(
        "gloo-peer-gone",
        r"gloo/transport/\S+.*(?:[Cc]onnection (?:closed|reset) by peer|Broken pipe|Connection refused|Socket closed)",
        "another rank is gone, as gloo noticed",
        "See the other ranks: the one that was first has the cause.",
        consequence=True,
    ),
    Signature(
        "nccl-peer-gone",
        r"remote process exited or there was a network error|ncclRemoteError",
        "another rank is gone, or the network between the nodes failed, as NCCL noticed",
        "See the other ranks first. If none has an error of its own it is the network: NCCL_DEBUG=INFO in launch.env "
        "shows which connection.",
        consequence=True,
    ),
    Signature(
        "nccl-aborted",
        r"NCCL communicator was aborted",
        "NCCL's communicator was ended because another rank had failed",
        "See the other ranks.",
        consequence=True,
    ),
    Signature(
        "store-gone",
        r"(?:TCPStore|recvValue|sendBytes|recvVector).*(?:Connection reset|Broken pipe|Connection was likely closed|"
        r"failed)",
        "the process of rank 0, which holds the store, is gone",
        "See rank 0 and the rank that failed first.",
        consequence=True,
    ),
    Signature(
        "torchrun-signal",
        r"SignalException: Process \d+ got signal: (?:15|SIGTERM)",
        "torchrun's agent was told to end",
        "See the other nodes: the one that was first has the cause.",
        consequence=True,
    ),
    # --- memory
    Signature(
        "cuda-out-of-memory",
        r"(?:CUDA|HIP) (?:error: )?out of memory|(?:CUBLAS|CUDNN|HIPBLAS)_STATUS_ALLOC_FAILED",
        "the GPU's memory is full",
        "Use a smaller batch and train.accumulate, train.amp.level=bf16, train.recompute or train.strategy=fsdp.",
    ),
    Signature(
        "nccl-shared-memory",
        r"/dev/shm/nccl",
        "/dev/shm is full: NCCL's ranks of a node exchange data through it",
        "Give a container more of it (--shm-size), or set NCCL_SHM_DISABLE: 1 in launch.env, which is slower.",
        precedes=True,
    ),
    Signature(
        "shared-memory",
        r"killed by signal: Bus error|insufficient shared memory|unable to (?:mmap|allocate shared memory)|"
        r"No space left on device.*/dev/shm|/torch_\d+.*No space left",
        "/dev/shm is full: the workers of a DataLoader send their batches through it",
        "Use fewer num_workers or a smaller prefetch_factor, give a container more of it, or call "
        "torch.multiprocessing.set_sharing_strategy('file_system').",
        precedes=True,
    ),
    Signature(
        "host-out-of-memory",
        r"oom[-_]kill event|: Out Of Memory$|exceeded (?:virtual )?memory limit|Exceeded job memory limit",
        "the memory that the job has on a node is full, and the kernel or Slurm killed a process",
        MORE_MEMORY,
    ),
    Signature(
        "allocation-failed",
        r"DefaultCPUAllocator: can't allocate memory|^MemoryError|\bMemoryError(?::|$)|std::bad_alloc|"
        r"Cannot allocate memory|ArrayMemoryError",
        "the program asked for more memory than the node gives it",
        MORE_MEMORY,
    ),
    # --- GPUs
    Signature(
        "gpu-hardware",
        r"uncorrectable (?:NVLink|ECC)|uncorrectable .*error|NVRM: Xid|fallen off the bus|unspecified launch failure|"
        r"CUDA error: (?:hardware stack error|an illegal instruction)",
        "a GPU reports an error of its hardware",
        GPU_HARDWARE,
        precedes=True,
    ),
    Signature(
        "device-side-assert",
        r"device-side assert triggered|\.cu:\d+: .*Assertion .* failed",
        "a check in a CUDA kernel failed; most often a class label or an index of an embedding is out of range",
        "The line with `Assertion` names the check. Try the same batch on the CPU, or with CUDA_LAUNCH_BLOCKING=1 in "
        "launch.env.",
        precedes=True,
    ),
    Signature(
        "illegal-memory-access",
        r"CUDA error: (?:an illegal memory access|misaligned address|invalid device function)",
        "a CUDA kernel read or wrote where it may not: a bug of an extension or a library, or a broken GPU",
        "Run with CUDA_LAUNCH_BLOCKING=1 in launch.env, which names the line. If it is always the same node, tell "
        "your site.",
    ),
    Signature(
        "no-kernel-image",
        r"no kernel image is available",
        "this torch was not built for GPUs of this kind",
        "Install a torch for them, or ask for other nodes with resources.constraint.",
    ),
    Signature(
        "driver-too-old",
        r"NVIDIA driver on your system is too old|driver version is insufficient",
        "the node's NVIDIA driver is older than this torch needs",
        "Install a torch that is built for an older CUDA, or ask for other nodes with resources.constraint.",
    ),
    Signature(
        "no-gpu",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|Found no NVIDIA driver|invalid device ordinal|"
        r"ProcessGroupNCCL is only supported with GPUs|Torch not compiled with CUDA enabled",
        "the rank has no GPU, or fewer than it looks for",
        "Ask for them with resources.gpus_per_node, and use job.device or LOCAL_RANK modulo "
        "torch.cuda.device_count(). `python -c 'import torch; print(torch.version.cuda)'` prints None where torch has "
        "no CUDA.",
    ),
    # --- NCCL and the network
    Signature(
        "gpu-busy",
        r"CUDA-capable device\(s\) is/are busy or unavailable|all CUDA-capable devices are busy",
        "another process has the GPU, which takes only one (exclusive mode), or the GPU is stuck",
        "`nvidia-smi` on the node shows both. Two ranks on a GPU need compute mode Default.",
    ),
    Signature(
        "no-backend-for-device",
        r"No backend type associated with device type",
        "a collective got a tensor on a device for which the process group has no backend",
        "Leave train.backend out, or set it to cpu:gloo,cuda:nccl, which takes tensors of both.",
    ),
    Signature(
        "nccl-watchdog-stuck",
        r"watchdog got stuck for \d+ seconds",
        "a call of NCCL or CUDA hangs, or a thread holds Python's lock in one",
        "See the stacks in `hang.txt`. TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC in launch.env waits longer.",
    ),
    Signature(
        "nccl-duplicate-gpu",
        r"Duplicate GPU detected",
        "two ranks of a node use the same GPU",
        "Call torch.cuda.set_device(LOCAL_RANK % torch.cuda.device_count()) before the first collective; job.device "
        "is right by itself. resources.tasks_per_node must not exceed the GPUs.",
    ),
    Signature(
        "nccl-no-interface",
        r"no socket interface found",
        "NCCL finds no network interface of the name that it was given",
        "Set NCCL_SOCKET_IFNAME in launch.env to one that each node has (`ip -br addr`), or leave it out.",
    ),
    Signature(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for|collective operation timeout",
        "a collective timed out: another rank did not come to it in time",
        "Look at the rank that has not said so. Uneven batches, an `if rank == 0:` around a collective and slow "
        "storage are the usual causes. train.timeout_s is the limit; hang.txt, where there is one, has the stacks.",
        precedes=True,
    ),
    Signature(
        "hung",
        r"the attempt has hung|; the others? waits? in ",
        "no rank made progress, so clusterdp ended the attempt as hung",
        "hang.txt has what each rank was at, with its stack; docs/failures.md has the usual causes. If it was only "
        "slow, set restart.hang_after_s.",
    ),
    Signature(
        "nccl-system-error",
        r"ncclSystemError:",
        "NCCL could not reach another rank, or a call of the system failed",
        "`Last error` says which. NCCL_DEBUG=INFO in launch.env says more. Two nodes that cannot reach each other "
        "need NCCL_SOCKET_IFNAME with the interface between them.",
    ),
    Signature(
        "nccl-usage",
        r"ncclInvalidUsage:|ncclInvalidArgument:|ncclInternalError:|ncclUnhandledCudaError:",
        "NCCL refused a call",
        "`Last error` and NCCL_DEBUG=WARN in launch.env say why. Ranks with different releases of NCCL or torch do "
        "so, too.",
    ),
    Signature(
        "port-in-use",
        r"EADDRINUSE|[Aa]ddress already in use",
        "a port is taken by another process of the node",
        "Use MASTER_PORT as the job sets it, not a fixed port: two jobs on a node would meet. Bind other servers to "
        "port 0.",
    ),
    Signature(
        "rendezvous-timeout",
        r"waiting for clients\. \d+/\d+ clients joined|client socket has (?:timed out|failed)|wait timeout after \d+ms|"
        r"connectFullMesh failed|RendezvousTimeoutError|RendezvousConnectionError",
        "the ranks did not find each other",
        "Look for a rank that ended or hung before. Else MASTER_ADDR cannot be reached from a node: see its network "
        "in docs/environments.md; launch.preflight=true tries the way.",
    ),
    # --- files
    Signature(
        "too-many-open-files",
        r"Too many open files",
        "the limit of open files is reached",
        "Write `ulimit -n $(ulimit -Hn)` in launch.setup, or call "
        "torch.multiprocessing.set_sharing_strategy('file_system').",
    ),
    Signature(
        "disk-full",
        r"No space left on device|ENOSPC",
        "a disk is full",
        "`df -h` and `df -i` say which. TMPDIR on a node may be small; checkpoint.keep_last and `clusterdp checkpoint "
        "prune` free some.",
    ),
    Signature(
        "quota",
        r"Disk quota exceeded|EDQUOT",
        "your quota is used up",
        "`quota -s`, or `lfs quota` on Lustre, says which. checkpoint.keep_last and `clusterdp checkpoint prune` free "
        "some.",
    ),
    Signature(
        "triton-cache",
        r"Error: .*/\.triton/(?:cache|dump)/",
        "Triton's cache is in a folder where processes of several nodes disturb each other, such as a home on NFS",
        "Set TRITON_CACHE_DIR: /tmp/triton in launch.env: each node then has its own.",
    ),
    Signature(
        "stale-file",
        r"Stale (?:NFS )?file handle|ESTALE",
        "a file on a network file system was replaced or removed while it was open",
        "Do not rewrite data or environments that a job uses. Start again; if it comes back, ask your site.",
    ),
    Signature(
        "io-error",
        r"\[Errno 5\]|Input/output error|Transport endpoint is not connected|Remote I/O error",
        "a disk or a network file system failed",
        "It is the node or the storage. Tell your site; `restart.crash.avoid_node=true` avoids the node.",
    ),
    Signature(
        "crlf-script",
        r"\\r\W?: (?:command not found|No such file)|\$'\\r'|cannot execute: required file not found|bad interpreter",
        "a script cannot be started: its first line names no program there, or its lines end as on Windows (CRLF)",
        "`dos2unix FILE`, or `sed -i 's/\\r$//' FILE`; else correct the path after #!.",
    ),
    Signature(
        "setup",
        r"^launch\.setup: line \d+ ended with exit code",
        "a line of launch.setup failed, and the program was not started",
        "It runs on the job's first node, in the snapshot. Correct what it names, or write `|| true` behind a line "
        "that may fail.",
    ),
    Signature(
        "shell-only",
        rf"^{SHELL}: (?:line \d+: )?exec: (?:{WORDS_OF_A_SHELL}|[A-Za-z_]\w*=\S*): not found",
        "the command begins with a word that only a shell knows, and none reads it",
        "Put the lines below script:, which bash reads. A variable goes into launch.env; `source` and `module load` "
        "into launch.setup.",
    ),
    Signature(
        "command-not-found",
        r": command not found|execve\(\): .*No such file or directory|can't open file '.*': \[Errno 2\]|"
        rf"^{SHELL}: (?:line \d+: )?(?:exec: )?\S+: (?:not found|No such file or directory)",
        "the program is not there on the node, or not on its PATH",
        "Load it in launch.setup or launch.modules. Paths are relative to the snapshot, which has what git does not "
        "ignore.",
    ),
    Signature(
        "not-executable",
        rf"execve\(\): .*Permission denied|^{SHELL}: (?:line \d+: )?(?:exec: )?\S+: Permission denied|"
        r"Exec format error",
        "the program may not be executed",
        "`chmod +x FILE`, or name the interpreter: command: [python, train.py].",
    ),
    Signature(
        "permission",
        r"\bPermissionError(?::|$)|: Permission denied|\[Errno 13\]|Read-only file system",
        "a file may not be read or written",
        "`ls -ld` of the file and its folders says whose it is. In a container it may not be mounted, or read-only.",
    ),
    Signature(
        "hf-hub",
        r"(?:host=['\"]|https://)huggingface\.co\b|huggingface_hub\.(?:errors|utils\.\w+)\.\w+Error:|"
        r"(?:LocalEntryNotFoundError|OfflineModeIsEnabled|GatedRepoError|RepositoryNotFoundError)(?::|$)",
        "Hugging Face's hub cannot be reached from the node, or does not give the file",
        "Compute nodes often have no internet. Download it on the login node (`hf download`), and set HF_HOME and "
        "HF_HUB_OFFLINE=1 in launch.env. A gated model needs HF_TOKEN in launch.secrets.",
    ),
    # --- Python, and what is installed
    Signature(
        "glibc",
        r"version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found",
        "a library was built for a newer system than the node has",
        "Install it on the cluster itself, or use a container (launch.container).",
    ),
    Signature(
        "shared-library",
        r"cannot open shared object file|undefined symbol:",
        "a shared library is missing on the node, or of another release",
        "Load its module in launch.modules, or reinstall the package beside the torch that is used.",
    ),
    Signature(
        "container-engine",
        r"^FATAL: +|pyxis: (?:couldn't|failed)|enroot-\w+: .*\[ERROR\]",
        "the container's engine could not start the program: no rank has run",
        "See launch.container: the image must be there on the node, and have the program, or launch.python.",
    ),
    Signature(
        "missing-clusterdp",
        r"No module named '?clusterdp\b",
        "the ranks' Python does not have clusterdp",
        "Install clusterdp where the ranks' Python is: in the image of launch.container, or in the environment that "
        "launch.python or launch.setup names.",
    ),
    Signature(
        "missing-module",
        r"\bModuleNotFoundError:|: No module named ",
        "a Python module is not installed there, or not in the snapshot",
        "Activate the right environment in launch.setup, or name its Python in launch.python; a container's image must "
        "have it. A module of your own must not be ignored by git.",
    ),
    Signature(
        "missing-file",
        r"\b(?:FileNotFoundError|NotADirectoryError)(?::|$)|: No such file or directory|\[Errno 2\]",
        "a file or folder is not there on the node",
        "Paths are relative to the snapshot, which has what git does not ignore: snapshot.link takes data in. A path "
        "such as /tmp is another one on each node.",
    ),
    Signature(
        "import",
        r"\bImportError(?::|$)",
        "a Python module cannot be imported",
        "Two packages do not fit together, or a file of yours has the name of a package.",
    ),
    Signature(
        "wandb-login",
        r"api_key not configured|wandb: ERROR .*(?:login|api[_ ]key)|wandb\.errors\.\S*(?:UsageError|"
        r"AuthenticationError)",
        "W&B has no API key in the job",
        "Put WANDB_API_KEY in launch.secrets, or set WANDB_MODE=offline in launch.env.",
    ),
    Signature(
        "no-internet",
        r"Temporary failure in name resolution|Name or service not known|Max retries exceeded|"
        r"Network is unreachable|\b(?:URLError|ConnectTimeout)(?::|$)",
        "a server cannot be reached from the node",
        "Compute nodes often have no internet. Download on the login node, or set your site's proxy in launch.env.",
    ),
    # --- torch: the model and the data
    Signature(
        "state-dict",
        r"Error\(s\) in loading state_dict|size mismatch for |Missing key\(s\) in state_dict",
        "a checkpoint does not fit the model",
        "The lines after it name the tensors. Build the model as it was then; a prefix `module.` comes from DDP.",
    ),
    Signature(
        "damaged-checkpoint",
        r"failed (?:reading zip archive|finding central directory)|MetadataIncompleteBuffer|invalid load key|"
        r"unexpected EOF, expected|UnpicklingError: (?!Weights only)",
        "a checkpoint file is damaged or incomplete",
        "It was cut off while it was written, most likely. `clusterdp checkpoint verify` checks ours; use an older "
        "one.",
    ),
    Signature(
        "weights-only",
        r"Weights only load failed",
        "a checkpoint holds other things than tensors, and torch.load refuses it since 2.6",
        "If you trust the file: torch.load(..., weights_only=False), or torch.serialization.add_safe_globals().",
    ),
    Signature(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "parameters of the model had no part in the loss, which DDP does not allow",
        "Remove them, or set train.ddp={find_unused_parameters: true}. TORCH_DISTRIBUTED_DEBUG=DETAIL names them.",
    ),
    Signature(
        "not-finite",
        r"returned nan values|Error: .*(?:loss is (?:nan|inf|not finite)|[Nn]on-finite loss)|train\.on_nan",
        "the loss or a gradient is not a finite number",
        "Use a lower learning rate, warm-up or train.clip_norm; train.on_nan=skip leaves such steps out. Look at the "
        "data of that step.",
    ),
    Signature(
        "loader-pickling",
        r"[Cc]an't (?:pickle|get local) (?:local )?object|cannot pickle|PicklingError",
        "an object cannot be sent to a worker process",
        "Worker processes get the data set by pickle: no lambda, no local class or function, no open file in it.",
    ),
    Signature(
        "loader-worker-died",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:exited unexpectedly|is killed by signal)|"
        r"loader: a worker .*(?:killed|died|ended)",
        "a worker of a DataLoader was killed or crashed",
        "Most often the node's memory is full: " + MORE_MEMORY[0].lower() + MORE_MEMORY[1:],
    ),
    Signature(
        "threads",
        r"can't start new thread|fork: .*Resource temporarily unavailable|pthread_create failed",
        "the limit of processes or threads is reached",
        "Use fewer num_workers and OMP_NUM_THREADS; `ulimit -u` is the limit.",
    ),
    Signature(
        "devices",
        r"Expected all tensors to be on the same device|weight is on cpu but expected on cuda",
        "tensors are on different devices: most often the batch is on the CPU and the model on the GPU",
        "job.loop(..., move=True) moves the batches; a tensor of your own goes with .to(job.device).",
    ),
    Signature(
        "cuda-graph-overwritten",
        r"output of CUDAGraphs that has been overwritten",
        "a tensor that a compiled model returned was kept over a step, which writes into the same memory",
        "Call .clone() on what is kept, or leave `mode` out of train.compile.",
    ),
    Signature(
        "shapes",
        r"shapes cannot be multiplied|must match the size of tensor|size of tensor a|Expected input batch_size|"
        r"stack expects each tensor to be equal size|mat1 and mat2 must have the same dtype",
        "tensors do not fit each other: shape or type",
        "It is in the model or the data; the traceback has the line. A last batch that is smaller is a usual cause.",
    ),
    Signature(
        "target-range",
        r"Target -?\d+ is out of bounds|index out of range in self",
        "a class label or an index of an embedding is out of range",
        "Compare the labels with the number of classes, and the tokens with the vocabulary.",
    ),
    # --- messages about the end of a process
    Signature(
        "illegal-instruction",
        r"Illegal instruction",
        "a library was built for another CPU than the node has",
        "Install it on a node of that kind, or ask for the right ones with resources.constraint.",
    ),
    Signature(
        "segfault",
        r"Segmentation fault|\bSIGSEGV\b|signal 11\b|with exit code 139$",
        "native code crashed: a library or an extension",
        "PYTHONFAULTHANDLER=1 in launch.env prints where. Libraries that were built for another torch or CUDA do so.",
    ),
    Signature(
        "bus-error",
        r"Bus error|SIGBUS|with exit code 135$",
        "a file or /dev/shm that was mapped to memory had no room, or was cut short",
        "`df -h /dev/shm` on the node; do not rewrite data that a job has open.",
    ),
    Signature(
        "abort",
        r": Aborted(?: \(core dumped\))?$|terminate called|SIGABRT|signal 6\b|with exit code 134$",
        "native code ended the process (abort)",
        "The lines before it say why.",
        vague=True,
    ),
    Signature(
        "time-limit",
        r"DUE TO TIME LIMIT",
        "the job's time was over",
        "Ask for more with resources.time; with checkpoints `clusterdp resume` goes on.",
    ),
    Signature(
        "node-failure",
        r"DUE TO NODE FAILURE|srun: error: Node failure on",
        "a node failed",
        "Slurm starts the job again on others where requeue is allowed; `clusterdp resume` does so, too.",
    ),
    Signature(
        "launch-failed",
        r"task \d+ launch failed|Unable to create (?:step|job)|Job step creation|slurm_launch|Slurmd could not",
        "Slurm could not start the ranks",
        "The message says why: most often a wrong number of tasks, CPUs or GPUs, or a node that does not answer.",
    ),
    Signature(
        "killed",
        r": Killed$|exitcode +: -9|Signal 9 \(SIGKILL\)|signal 9\b|with exit code 137$",
        "the process was killed (SIGKILL)",
        "Most often its node had no memory left: see resources.mem, and `sacct -j JOB -o JobID,MaxRSS,State`. Else "
        "somebody killed it, or the node's watchdog.",
    ),
    Signature(
        "exit-code",
        r": Exited with exit code \d+$",
        "the program ended with an error, and printed none",
        "The end of its log says how far it came. Look for sys.exit() and os._exit() in the program.",
    ),
    # --- other messages that mostly follow another rank's failure, such as a time-out of the store
    Signature(
        "connection-lost",
        r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|Connection was likely closed|"
        r"Socket Timeout|"
        r"DistNetworkError|DistBackendError|gloo/transport|ConnectionResetError|BrokenPipeError",
        "a connection to another process was lost",
        "See the other ranks: the one that was first has the cause.",
        consequence=True,
        vague=True,
    ),
)
BY_NAME = {each.name: each for each in SIGNATURES}
