"""A line or two of real output for each failure that `clusterdp why` knows, by its name (operate/why/signatures.py)."""

from __future__ import annotations

EXAMPLES = {
    "another-rank": "clusterdp: this follows from another rank's failure: rank 1: ValueError: the loss is nan",
    "step-cancelled": "slurmstepd-n1: error: *** STEP 89533.0 ON n1 CANCELLED AT 2026-11-23T08:14:33 ***",
    "gloo-peer-gone": (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[10.0.0.2]:42693"
    ),
    "nccl-peer-gone": (
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
        "remote "
        "process exited or there was a network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
    ),
    "nccl-aborted": (
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 3. Original reason for failure "
        "was: NCCL error: unhandled system error"
    ),
    "store-gone": (
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely closed. Did the "
        "remote server shutdown or crash? recvValue failed"
    ),
    "torchrun-signal": "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
    "cuda-out-of-memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 "
        "GiB of which 12.73 GiB is free."
    ),
    "nccl-shared-memory": (
        "n1:4711:4800 [0] include/shm.h:28 NCCL WARN Error: failed to extend /dev/shm/nccl-hxTmQG to 33030532 bytes, "
        "error: No space left on device (28)"
    ),
    "shared-memory": (
        "RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit."
    ),
    "host-out-of-memory": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM Killed."
    ),
    "allocation-failed": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 4503599627370496 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "gpu-hardware": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "device-side-assert": (
        "../aten/src/ATen/native/cuda/NLLLoss2d.cu:103: nll_loss2d_forward_kernel: block: [3,0,0], thread: [929,0,0] "
        "Assertion `t >= 0 && t < n_classes` failed."
    ),
    "illegal-memory-access": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "no-kernel-image": "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "driver-too-old": (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
    ),
    "no-gpu": "RuntimeError: No CUDA GPUs are available",
    "gpu-busy": "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "no-backend-for-device": "RuntimeError: No backend type associated with device type cpu",
    "nccl-watchdog-stuck": (
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued "
        "collectives. This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang"
    ),
    "nccl-duplicate-gpu": (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
        "invalid usage "
        "(run with NCCL_DEBUG=WARN for details), NCCL version 2.20.5\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Last error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10"
    ),
    "nccl-no-interface": (
        "torch.distributed.DistBackendError: NCCL error in: "
        "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2588, "
        "internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\n"
        "ncclInternalError: Internal check failed.\n"
        "Last error:\n"
        "Bootstrap : no socket interface found"
    ),
    "collective-timeout": (
        "[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, NumelOut=68124672, "
        "Timeout(ms)=600000) ran for 600061 milliseconds before timing out."
    ),
    "hung": "clusterdp: ending rank 1: the attempt has hung; see /home/user/runs/h/attempts/7.0/hang.txt",
    "nccl-system-error": (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, "
        "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "Last error:\n"
        "socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host"
    ),
    "nccl-usage": (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
        "invalid usage "
        "(run with NCCL_DEBUG=WARN for details), NCCL version 2.20.5\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
    ),
    "port-in-use": (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    ),
    "rendezvous-timeout": (
        "torch.distributed.DistStoreError: Timed out after 2 seconds waiting for clients. 1/2 clients joined."
    ),
    "too-many-open-files": (
        "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase the "
        "limit using `ulimit -n` in the shell or change the sharing strategy"
    ),
    "disk-full": "OSError: [Errno 28] No space left on device",
    "quota": "OSError: [Errno 122] Disk quota exceeded: 'model.pt'",
    "triton-cache": (
        "OSError: [Errno 116] Stale file handle: '/home/user/.triton/cache/1f3a/kernel.json.tmp.pid_4711_8f'"
    ),
    "stale-file": "OSError: [Errno 116] Stale file handle: '/home/user/data/train.bin'",
    "io-error": "OSError: [Errno 5] Input/output error: '/lustre/data/train-0007.tar'",
    "crlf-script": "/usr/bin/env: \u2018python3\\r\u2019: No such file or directory",
    "setup": "launch.setup: line 2 ended with exit code 1: source ~/envs/torch/bin/activate",
    "shell-only": "task: line 19: exec: cd: not found",
    "command-not-found": "bash: nosuchcmd: command not found",
    "not-executable": "bash: ./train.py: Permission denied",
    "permission": "PermissionError: [Errno 13] Permission denied: '/data/imagenet/train.bin'",
    "hf-hub": (
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub "
        "and we cannot find the requested files in the local cache."
    ),
    "glibc": (
        "ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /home/user/env/lib/module_ref.so)"
    ),
    "shared-library": "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
    "container-engine": (
        "FATAL:   could not open image /images/torch.sif: failed to retrieve path for /images/torch.sif"
    ),
    "missing-clusterdp": "ModuleNotFoundError: No module named 'clusterdp'",
    "missing-module": "ModuleNotFoundError: No module named 'timm'",
    "missing-file": "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'",
    "import": (
        "ImportError: cannot import name 'packaging' from 'pkg_resources' "
        "(/home/user/env/lib/pkg_resources/__init__.py)"
    ),
    "wandb-login": (
        "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])"
    ),
    "no-internet": "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
    "state-dict": (
        "RuntimeError: Error(s) in loading state_dict for Linear:\n"
        "\tsize mismatch for weight: copying a param with shape torch.Size([5, 3]) from checkpoint, the shape in "
        "current "
        "model is torch.Size([4, 3])."
    ),
    "damaged-checkpoint": "RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive.",
    "weights-only": (
        "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two "
        "options"
    ),
    "unused-parameters": (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
        "error indicates that your module has parameters that were not used in producing loss."
    ),
    "not-finite": "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.",
    "loader-pickling": "AttributeError: Can't pickle local object 'main.<locals>.collate'",
    "loader-worker-died": "RuntimeError: DataLoader worker (pid(s) 9936) exited unexpectedly",
    "threads": "RuntimeError: can't start new thread",
    "devices": (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    ),
    "cuda-graph-overwritten": (
        "RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run."
    ),
    "shapes": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 3x4)",
    "target-range": "IndexError: Target 7 is out of bounds.",
    "illegal-instruction": "srun: error: n2: task 5: Illegal instruction (core dumped)",
    "segfault": "Fatal Python error: Segmentation fault",
    "bus-error": "srun: error: Orion-18-69: task 289: Bus error",
    "abort": "srun: error: n2: task 1: Aborted (core dumped)",
    "time-limit": "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-31T10:41:09 DUE TO TIME LIMIT ***",
    "node-failure": "srun: error: Node failure on n2",
    "launch-failed": "srun: error: Unable to create step for job 4711: More processors requested than permitted",
    "killed": "srun: error: n2: task 1: Killed",
    "exit-code": "srun: error: n1: task 1: Exited with exit code 3",
    "connection-lost": "RuntimeError: Socket Timeout",
}
