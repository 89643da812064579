"""Each finding has a config where it is found, and one, the least different, where it must not be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clusterdp.check.check import KNOWN, all_findings
from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.program import read_program, read_script
from clusterdp.check.subject import LastRun
from clusterdp.fakeslurm.commands.options.options import ever
from clusterdp.slurm.commands import Association
from tests.check.builder import cluster, subject

COMMAND = {"command": ["python", "train.py"]}
OWN = {"slurm_script": "#!/bin/bash\n", "launch": {"template": "mine.j2"}}
ALONE = "import torch\nloss = net(x)\nloss.backward()"
KNOWS_RANKS = (
    "torch.distributed.init_process_group()",
    "rank = int(os.environ['RANK'])",
    "rank = os.environ.get('SLURM_PROCID')",
    "parser.add_argument('--local-rank')",
    "import lightning",
    "from accelerate import Accelerator",
    "from clusterdp.train import own_job",
    "import horovod.torch as hvd",
    "import_module(name)",
)
SAVES = "import torch\ntorch.save(x, 'last.pt')"
TORCH = "import os, signal, sys, torch\ndef stop(*_):\n    sys.exit(75)\nsignal.signal(signal.SIGTERM, stop)\n"


MIXED = {"gpu:a100:4(S:0-1)": "gpu:a100:7,gpu:1g.5gb:7", "gpu:a100:4|": "gpu:a100:7,gpu:1g.5gb:7|"}


NO_ACCOUNTING = {
    "=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL": "=main AllowGroups=ALL AllowAccounts=vision AllowQos=vip",
    "AccountingStorageType": "accounting_storage/none",
}
# Nodes with 32 CPUs and no GPU, and some with 4 CPUs and 4 GPUs.
APART = {"gpu|up|mixed|3|32|512000|gpu:a100:4(S:0-1)": "gpu|up|mixed|3|32|512000|(null)", "down*|1|32": "idle|1|4"}
EXPEDITE = {"slurm_script": "#!/bin/bash\n#SBATCH --requeue=expedite\n", "launch": {"template": "mine.j2"}}
# The partitions of a higher tier have other nodes.
LOW_APART = {"Nodes=n[1-4] PriorityJobFactor=1 PriorityTier=10": "Nodes=n[8-9] PriorityJobFactor=1 PriorityTier=10"}


OPTIONS = (
    "p.add_argument('--url', default='tcp://127.0.0.1:29500')\np.add_argument('--workers', default=8)\n"
    "DataLoader(x, num_workers=args.workers)"
)


class Case(NamedTuple):
    """`said`: in the finding's key and words. `resources`, `values`: of the config. `but`, `but_cluster`: what makes it
    silent, of the config or of the cluster."""

    level: str
    said: str
    resources: Mapping[str, Any] = {}
    values: Mapping[str, Any] = {}
    of_cluster: Mapping[str, str] = {}
    but: Mapping[str, Any] = {}
    but_cluster: Mapping[str, str] | None = None


CASES = [
    Case("warning", "/no/python cannot be run here (No such file", values={"launch": {"host_python": "/no/python"}},
         but={"launch": {"host_python": sys.executable}}),
    Case("warning", "false is not Python 3.6 or later", values={"launch": {"host_python": "false"}},
         but={"launch": {"host_python": sys.executable}}),
    Case("warning", "launch.env.PATH: no folder of '/opt/x:$PATH' has bash here",
         values={"launch": {"env": {"PATH": "/opt/x:$PATH"}}}, but={"launch": {"env": {"PATH": "/opt/x:/bin"}}}),
    Case("warning", "launch.container.image: /none.sif is not on this machine",
         values={"launch": {"container": {"image": "/none.sif", "runtime": "apptainer"}}},
         but={"launch": {"container": {"image": sys.executable, "runtime": "apptainer"}}}),
    Case("warning", "none.sqsh is not on this machine", values={"launch": {"container": {"image": "none.sqsh"}}},
         but={"launch": {"container": {"image": "nvcr.io#nvidia/pytorch:24.10-py3"}}}),
    Case("error", "train.global_batch_size: 30 is not a multiple of 8",
         values={"entry": "a:b", "train": {"global_batch_size": 30}, "params": {"batch_size": 8}},
         but={"params": {"batch_size": 10}}),
    Case("error", "32 samples in micro-batches of 16 are too few for 3 ranks", {"nodes": 3},
         values={"entry": "a:b", "train": {"global_batch_size": 32}, "params": {"batch_size": 16}}, but={"nodes": 2}),
    Case("hint", "8 micro-batches of 8 on 3 ranks: 3 or 2 on each", {"nodes": 3},
         values={"entry": "a:b", "train": {"global_batch_size": 64}, "params": {"batch_size": 8}}, but={"nodes": 4}),
    Case("error", "32 samples in micro-batches of 8 are too few for 8 ranks",
         {"nodes": "2-8"}, values={"entry": "a:b", "train": {"global_batch_size": 32}, "params": {"batch_size": 8}},
         but={"nodes": "2-4"}),
    Case("hint", "64 micro-batches of 1: on 3, 5-7 nodes, ranks wait for others", {"nodes": "2-8"},
         values={"entry": "a:b", "train": {"global_batch_size": 64}, "params": {"batch_size": 1}},
         but={"nodes": "2,4,8"}),
    Case("error", "resources.nodes: 2,4 is a list. Slurm 22.05 knows ranges only", {"nodes": "2,4"},
         values={"entry": "a:b", "train": {"global_batch_size": 64}}, of_cluster={"SLURM_VERSION": "22.05.8"},
         but={"nodes": "2-4"}),
    Case("warning", "Slurm 22.05 gives no more nodes than the least ones have tasks: 4",
         {"nodes": "2-8", "tasks_per_node": 2}, values={"command": ["./program"]},
         of_cluster={"SLURM_VERSION": "22.05.8"}, but={"nodes": "4-8"}),
    Case("warning", "2-8 nodes, with 1 task of srun on each", {"nodes": "2-8"}, values={"command": ["./program"]},
         of_cluster={"SLURM_VERSION": "22.05.8"}, but_cluster={"SLURM_VERSION": "24.11.5"}),
    Case("warning", "each attempt of the program may have another number of nodes: 1-2", {"nodes": "1-2"},
         values={"command": ["./program"]}, but={"nodes": 2}),
    Case("error", "partition: there is no partition lwo", {"partition": "lwo"}, but={"partition": "low"}),
    Case("error", "there is no partition nosuch", {"partition": "main,nosuch"}, but={"partition": "main,low"}),
    Case("error", "partition: is not set, and this cluster has no default", of_cluster={"Default=YES": "Default=NO"},
         but={"partition": "low"}),
    Case("error", "partition: is not set, and this cluster has no default", of_cluster={"Default=YES": "Default=NO"},
         but_cluster={"Default=YES": "Default=NO", "JobSubmitPlugins": "lua"}),
    Case("error", "main takes jobs of a reservation alone", of_cluster={"ReqResv=NO": "ReqResv=YES"},
         but={"reservation": "course"}),
    Case("error", "main is for groups that you are not in", of_cluster={"AllowGroups=ALL": "AllowGroups=admin"},
         but_cluster={"AllowGroups=ALL": "AllowGroups=admin,people"}),
    Case("error", "main is for root alone", of_cluster={"RootOnly=NO": "RootOnly=YES"}, but_cluster={}),
    Case("error", "account: nlp may not use main: Deny", {"account": "nlp"},
         of_cluster={"AllowAccounts=ALL": "AllowAccounts=ALL DenyAccounts=nlp,law"}, but={"account": "vision"}),
    Case("error", "account: nlp may not use main", {"account": "nlp"},
         of_cluster={"AllowAccounts=ALL": "AllowAccounts=vision", "SLURM_VERSION": "22.05.8"},
         but_cluster={"AllowAccounts=ALL": "AllowAccounts=vision", "SLURM_VERSION": "23.02.1"}),
    Case("error", "main has AllowAccounts=vision", {"account": "vision"},
         of_cluster=NO_ACCOUNTING | {"SLURM_VERSION": "22.05.8"},
         but_cluster=NO_ACCOUNTING | {"SLURM_VERSION": "24.11.5"}),
    Case("error", "qos: vip may not use main: AllowQos=short", {"qos": "vip"},
         of_cluster={"AllowQos=ALL": "AllowQos=short"}, but={"qos": "short"}),
    Case("error", "qos: vip may not use main: DenyQos=vip", {"qos": "vip"},
         of_cluster={"AllowQos=ALL": "DenyQos=vip"}, but={"qos": "short"}),
    Case("error", "UNLIMITED is more than gpu allows", {"partition": "gpu", "time": "UNLIMITED"}, but={"time": "5"}),
    Case("error", "time: 0 is more than gpu allows", {"partition": "gpu", "time": "0"}, but={"partition": "main"}),
    Case("error", "main is DRAIN", of_cluster={"State=UP": "State=DRAIN"}, but_cluster={}),
    Case("warning", "main is DOWN", of_cluster={"State=UP": "State=DOWN"}, but_cluster={}),
    Case("error", "3-00:00:00 is more than gpu allows", {"partition": "gpu", "time": "3-00:00:00"},
         but={"time": "48:00:00"}),
    Case("hint", "time: is not set", of_cluster={"DefaultTime=NONE": "DefaultTime=00:30:00"}, but={"time": "1:00:00"}),
    Case("error", "4 nodes asked for, and gpu allows 3 at most", {"partition": "gpu", "nodes": 4}, but={"nodes": 3}),
    Case("error", "main takes no job with less than 2", of_cluster={"MinNodes=0": "MinNodes=2"}, but={"nodes": 2}),
    Case("error", "CPUs on a node are more than main allows", {"cpus_per_task": 8},
         of_cluster={"MaxCPUsPerNode=UNLIMITED": "MaxCPUsPerNode=4"}, but={"cpus_per_task": 4}),
    Case("error", "mem: 15G is more than main allows", {"mem": "15G"},
         of_cluster={"MaxMemPerNode=UNLIMITED": "MaxMemPerNode=8000"}, but={"mem": "7G"}),
    Case("error", "mem: 9G takes 10 CPUs on a node: main allows 1000 MB for each", {"mem": "9G"},
         of_cluster={"MaxMemPerNode=UNLIMITED": "MaxMemPerCPU=1000"}, but={"mem": "7G"}),
    Case("hint", "mem: 3000M takes 3 CPUs on a node", {"mem": "3000M", "cpus_per_task": 2},
         of_cluster={"MaxMemPerCPU": "1000"}, but={"cpus_per_task": 3}),
    Case("hint", "mem: 3000M takes 3 CPUs on a node", {"mem": "3000M"}, of_cluster={"MaxMemPerCPU": "1000"},
         but_cluster={"MaxMemPerCPU": "1000", "MaxMemPerNode=UNLIMITED": "MaxMemPerNode=8000"}),  # its own comes first
    Case("error", "account: nlp may not use main", {"account": "nlp"},
         of_cluster={"AllowAccounts=ALL": "AllowAccounts=vision"}, but={"account": "vision"}),
    Case("error", "nodes: 5 nodes asked for, and main has 4", {"nodes": 5}, but={"nodes": 4}),
    Case("warning", "nodes: 3 of the 4 nodes in gpu", {"partition": "gpu", "nodes": 4},
         of_cluster={"MaxNodes=3": "MaxNodes=9"}, but={"nodes": 3}),
    Case("error", "gpus_per_node: 4 GPUs on a node", {"gpus_per_node": 4}, but={"gpus_per_node": 2}),
    Case("error", "gpus_per_node: 4 GPUs on a node", {"gpus_per_node": 4}, but={"partition": "gpu"}),
    Case("error", "GPUs of type h100", {"partition": "gpu", "gpus_per_node": "h100:2"},
         but={"gpus_per_node": "a100:2"}),
    Case("error", "cpus_per_task: 2 x 5 = 10 CPUs", {"tasks_per_node": 2, "cpus_per_task": 5},
         but={"cpus_per_task": 4}),
    Case("error", "mem: 20G on a node", {"mem": "20G"}, but={"mem": "0"}),
    Case("error", "mem: 0 is all memory of a node, which is more than main allows on a node: 8000", {"mem": "0"},
         of_cluster={"MaxMemPerNode=UNLIMITED": "MaxMemPerNode=8000"}, but={"mem": "7G"}),
    Case("error", "partition: there is no partition with an empty name", {"partition": ""}, but={"partition": "main,"}),
    Case("error", "partition: main has no nodes", of_cluster={"main*|up|idle|4": "main*|up|n/a|0"}, but_cluster={}),
    Case("error", "script: bash cannot read it: line 2: syntax error", values={"script": "if true\nfi\n"},
         but={"script": "if true\nthen true; fi\n"}),
    Case("error", "setup: bash cannot read it: line 1: ", values={"launch": {"setup": "module load 'x"}},
         but={"launch": {"setup": "module load x"}}),
    Case("warning", "there is no program nosuchrun on the PATH", values={"command": ["nosuchrun", "run", "train.py"],
         "program": ALONE}, but={"command": ["env", "X=1", sys.executable, "train.py"]}),
    Case("error", "all of the features a100&h100: no node in gpu has that", {"partition": "gpu", "constraint":
         "a100&h100"}, of_cluster={"|1|32|512000|gpu:a100:4|a100": "|1|32|512000|gpu:a100:4|h100"},
         but={"constraint": "h100"}),
    Case("warning", "sbatch has no option --foo", {"extra": {"foo": "bar"}},
         but={"extra": {"mail-type": "END", "mail-us": 1}}),
    Case("error", "mem-per-cpu: 8 x 3G = 24576M on a node", {"cpus_per_task": 8, "extra": {"mem-per-cpu": "3G"}},
         but={"cpus_per_task": 4}),
    Case("error", "mem-per-cpu: 8 x 3G = 24576M on a node", {"cpus_per_task": 8, "extra": {"mem-per-cpu": "3G"}},
         of_cluster={"SelectTypeParameters": "CR_CORE_MEMORY"}, but_cluster={"SelectTypeParameters": "CR_CORE"}),
    Case("error", "mem-per-cpu: 2 x 20G = 40960M on a node", {"cpus_per_task": 2, "extra": {"mem-per-cpu": "20G"}},
         of_cluster={"SelectTypeParameters": "CR_CORE"}, but={"extra": {"mem-per-cpu": "15G"}}),
    Case("error", "on a node: no node in gpu has that beside all else", {"partition": "gpu", "cpus_per_task": 8,
         "gpus_per_node": 4, "tasks_per_node": 1}, of_cluster=APART, but={"cpus_per_task": 4}),
    Case("error", "CPUs on a node: no node in gpu has that. ", {"partition": "gpu", "cpus_per_task": 33,
         "gpus_per_node": 4, "tasks_per_node": 1}, of_cluster=APART, but={"cpus_per_task": 8}),
    Case("warning", "--requeue=expedite: a job that does not end with 0 is requeued and held", values=EXPEDITE,
         of_cluster={"SlurmctldParameters": "enable_expedited_requeue"}, but_cluster={}),
    Case("warning", "--requeue=expedite: a job that does not end with 0 is requeued and held", values=EXPEDITE,
         of_cluster={"SlurmctldParameters": "enable_expedited_requeue"},
         but={"slurm_script": "#!/bin/bash\n#SBATCH --requeue\n"}),
    Case("error", "mem-per-gpu: 2 x 9G = 18432M is more than", {"gpus_per_node": 2, "extra": {"mem-per-gpu": "9G"}},
         of_cluster={"MaxMemPerNode=UNLIMITED": "MaxMemPerNode=8000"}, but={"gpus_per_node": 1, "tasks_per_node": 1,
         "extra": {"mem-per-gpu": "7G"}}),
    Case("error", "exclude: leaves 2 nodes of main, and 3", {"nodes": 3, "exclude": "n[1-2]"},
         but={"exclude": "n1,x[1-9]"}),
    Case("error", "nodelist: n5 of the list are not in main", {"nodelist": "n[4-5]"}, but={"nodelist": "n[1-4]"}),
    Case("error", "8 GPUs of type a100 on a node", {"gpus_per_node": "a100:8", "partition": "gpu"},
         of_cluster=MIXED, but={"gpus_per_node": "a100:7"}),
    Case("error", "8 GPUs of type a100 on a node", {"gpus_per_node": "a100:8", "partition": "gpu"},
         of_cluster=MIXED, but={"gpus_per_node": "8"}),
    Case("error", "GPUs of type h100", {"gpus_per_node": "h100:1", "partition": "gpu"},
         of_cluster=MIXED, but={"gpus_per_node": "1g.5gb:7"}),
    Case("error", "the feature h100", {"partition": "gpu", "constraint": "h100"}, but={"constraint": "a100&nvlink"}),
    Case("error", "the feature h100", {"partition": "gpu", "constraint": "h100"}, but={"constraint": "[h100|a100]"}),
    Case("warning", "the run ends at its first preemption", {"partition": "low"}, {"restart": {"requeue": False}},
         but={"partition": "main"}),
    Case("warning", "the run ends at its first preemption", {"partition": "low"}, {"restart": {"requeue": False}},
         of_cluster={"PreemptMode=REQUEUE": "PreemptMode=CANCEL"}, but={"restart": {}}),
    Case("hint", "The job's script submits it again", {"partition": "low"}, {"restart": {"how": "resubmit"}},
         of_cluster={"PreemptMode=REQUEUE": "PreemptMode=CANCEL"}, but={"restart": {}}),
    Case("warning", "the run ends at its first preemption", {"partition": "low"}, {"restart": {"requeue": False}},
         of_cluster=LOW_APART | {"n[8-9]": "n[2-9]"}, but_cluster=LOW_APART),
    Case("warning", "low0 can be preempted: CANCEL, no grace", {"partition": "low0"},
         of_cluster={"PreemptMode=REQUEUE": "PreemptMode=CANCEL"}, but_cluster={}),
    Case("hint", "CANCEL, a grace time of 10 s", {"partition": "low"},
         of_cluster={"PreemptMode=REQUEUE": "PreemptMode=CANCEL"}, but_cluster={}),
    Case("hint", "low can be preempted: SUSPEND", {"partition": "low"},
         of_cluster={"PreemptMode=REQUEUE": "PreemptMode=GANG,SUSPEND"}, but_cluster={}),
    Case("hint", "SUSPEND", {"partition": "low"}, of_cluster={"PreemptMode=REQUEUE": "PreemptMode=SUSPEND"},
         but_cluster={"PreemptMode=REQUEUE": "PreemptMode=SUSPEND", "PriorityTier=10": "PriorityTier=1"}),
    Case("error", "has no `#SBATCH --requeue`", values=OWN, of_cluster={"JobRequeue": "0"},
         but={"slurm_script": "#!/bin/bash\n#SBATCH --requeue\n"}),
    Case("warning", "only at a stop", values={"checkpoint": {"every_s": None}}, but={"checkpoint": {"every_s": 600}}),
    Case("warning", "every_s: a checkpoint every 2 h, and", {"time": "1:00:00"}, {"checkpoint": {"every_s": 7200}},
         but={"time": "4:00:00"}),
    Case("warning", "every_s: a checkpoint every 10 min, and", {"time": "5"}, {"checkpoint": {"every_s": 600}},
         but={"checkpoint": {}}),  # who says nothing of it has a short job, and loses little
    Case("warning", "mem: 64 is 64 MB: Slurm counts megabytes", {"mem": "64"}, but={"mem": "64M"}),
    Case("warning", "mem-per-cpu: 4 is 4 MB: Slurm", {"extra": {"mem-per-cpu": 4}},
         but={"extra": {"mem-per-cpu": 4000}}),
    Case("hint", "time: 24:00 is 24 min: Slurm reads MINUTES:SECONDS", {"time": "24:00"}, but={"time": "24:00:00"}),
    Case("warning", "gres: one rank on each node with 2 GPUs", {"gres": "gpu:2"}, but={"gres": "gpu:1"}),
    Case("warning", "gres: one rank on each node with 2 GPUs", {"gres": "shard:1,gpu:a100:2"},
         but={"tasks_per_node": 2}),
    Case("hint", "gpus_per_task: each rank sees its own GPUs alone", {"gpus_per_task": "1", "tasks_per_node": 2},
         but={"tasks_per_node": 1}),
    Case("warning", "extra.gpus: one rank on each node with 2 GPUs", {"nodes": 2, "extra": {"gpus": "a100:4"}},
         but={"extra": {"gpus": 2}}),
    Case("warning", "script: directives in it do nothing: #SBATCH --nodes=4 (and 1 more)",
         values={"script": "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH -t 3\ntrue"},
         but={"script": "# as #SBATCH --nodes=4\ntrue"}),
    Case("warning", "train.py trains, and nothing in it forms a process group", {"nodes": 2},
         COMMAND | {"program": ALONE}, but={"nodes": 1}),
    *(Case("warning", "train.py trains, and nothing in it forms a process group", {"tasks_per_node": 2},
           COMMAND | {"program": ALONE}, but={"program": f"{line}\n{ALONE}"}) for line in KNOWS_RANKS),
    Case("warning", "train.py trains, and nothing in it forms a process group", {"nodes": 2},
         COMMAND | {"program": ALONE}, but={"command": ["accelerate", "launch", "train.py"]}),
    Case("warning", "there is no program nosuchprog on the PATH", values={"command": ["nosuchprog", "x"]},
         but={"command": ["true", "x"]}),
    Case("warning", "there is no program nosuchprog on the PATH", values={"command": ["nosuchprog", "x"]},
         but={"launch": {"modules": ["mine"]}}),
    Case("error", "gres: 4 GPUs on a node", {"gres": "gpu:4"}, but={"gres": "gpu:2"}),
    Case("hint", "gains no priority by age", values={"restart": {"how": "resubmit", "chain": 3}},
         of_cluster={"PriorityType": "priority/multifactor"},
         but_cluster={"PriorityType": "priority/multifactor", "PriorityFlags": "ACCRUE_ALWAYS"}),
    Case("error", "USR1 is not handled in entry jobs", values={"launch": {"signal": "USR1@90"}},
         but={"launch": {"signal": "USR2@90"}}),
    Case("warning", "20 s before the time limit", values=COMMAND | {"launch": {"signal": "USR2@20"}},
         but={"launch": {"signal": "USR2@60"}}),
    Case("warning", "10 h before a limit of 3 h", {"time": "3:00:00"}, {"launch": {"signal": "USR2@36000"}},
         but={"time": "12:00:00"}),
    Case("warning", "USR2 is sent, and nothing", values=COMMAND | {"program": TORCH, "launch": {"signal": "USR2@90"}},
         but={"launch": {"signal": "TERM@90"}}),
    Case("warning", "after TERM the program ends with 0",
         values=COMMAND | {"program": TORCH.replace("75", "0"), "launch": {"signal": "TERM@90"}}, but={"launch": {}}),
    Case("hint", "handles SIGTERM", {"partition": "low"}, COMMAND | {"program": "import torch"},
         but={"program": TORCH}),
    Case("hint", "handles SIGTERM", {"partition": "low"}, COMMAND | {"program": "import torch"},
         but={"program": "import torch, lightning"}),
    Case("hint", "handles SIGTERM", {"partition": "low"}, COMMAND | {"program": "import torch"},
         but={"partition": "main"}),
    Case("warning", "script: has an srun", values={"script": "cd $SCRATCH\nsrun python train.py"},
         but={"script": "cd $SCRATCH\n# srun\npython train.py"}),
    Case("warning", "script: has an srun", values={"script": "timeout 60 srun python train.py"},
         but={"script": "cat <<END\nsrun x\nEND\npython train.py"}),
    Case("warning", "command: has an srun", values={"command": "srun -n 2 python train.py"},
         but={"command": "python train.py srun"}),
    Case("warning", "2 x 4 = 8 processes train as 2 runs", {"tasks_per_node": 2},
         {"command": "torchrun --nproc_per_node=4 train.py"}, but={"tasks_per_node": 1}),
    Case("warning", "2 x 4 = 8 processes train as 2 runs", {"tasks_per_node": 2},
         {"script": "accelerate launch --num_processes 4 train.py"}, but={"script": "accelerate config"}),
    Case("warning", "2 x 2 = 4 processes", {"gpus_per_node": 2},
         {"command": "python -m torch.distributed.run --nproc-per-node gpu train.py"},
         but={"command": "python -m torch.utils.collect_env"}),
    Case("warning", "mpirun is started by each of 2", {"tasks_per_node": 2}, {"command": "mpirun python train.py"},
         but={"tasks_per_node": 1}),
    Case("warning", "torchrun is started by each of 2 ranks", {"nodes": 2},
         {"command": "torchrun --standalone train.py"},
         but={"command": "torchrun --nnodes 2 --rdzv_endpoint=n1 train.py"}),
    Case("warning", "torchrun is started by each of 2 workers of a torchrun", {"tasks_per_node": 2},
         {"command": "torchrun train.py", "launch": {"launcher": "torchrun"}}, but={"command": "train.py"}),
    *(Case("warning", "--signal=B: goes to the batch shell", values=COMMAND | {
        "launch": {"template": "mine.j2"}, "slurm_script": f"#SBATCH --signal=B:USR2@90\n{fires}\n"},
         but={"slurm_script": f"#SBATCH --signal=B:USR2@90\n{not_so}\n"})
      for fires, not_so in (
        ("srun a \\\n  b", "srun a \\\n  b &\nwait $!"),
        ("if true; then\n  srun a\nfi", "if true; then\n  srun a &\nfi\nwait"),
        ("time srun a", "srun a & pid=$!; wait $pid"),
        ("timeout 60 srun a", "srun hostname\nsrun a 2>&1 | tee log &  # the ranks\nwait"),
        ("srun a  # and not &", "step() {\n  srun a\n}\nstep &\nwait"),
        ("srun a |& tee log", "srun a |& tee log &\nwait"),
        ("srun a && echo done", "{\n  srun a\n} &\nwait"),
    )),
    Case("error", "is not a folder", values={"checkpoint": {"url": "/dev/null/x"}},
         but={"checkpoint": {"url": "/tmp/clusterdp-none/x"}}),
    Case("error", "is not a folder", values={"checkpoint": {"url": "/dev/null/x"}}, but={"checkpoint": {"url": "s3://b/x"}}),
    Case("warning", "1 CPU for each rank, which starts 4 loader workers", values={"params": {"num_workers": 4}},
         but={"cpus_per_task": 4}),
    Case("hint", "1 CPU for each rank with a GPU; a node has 4 for each", {"gpus_per_node": 2},
         but={"cpus_per_task": 2}),
    Case("warning", "OMP_NUM_THREADS: 8 is set", values={"launch": {"env": {"OMP_NUM_THREADS": "8"}}},
         but={"cpus_per_task": 8}),
    Case("hint", "not valid Python: ", values=COMMAND | {"program": "x = ("}, but={"program": "x = 1"}),
    Case("hint", "command: the port is hard-coded: accelerate", {"tasks_per_node": 1},
         {"command": "accelerate launch --main_process_port 29501 train.py"},
         but={"command": "accelerate launch train.py"}),
    Case("hint", "the port is hard-coded: p.add", values=COMMAND | {"program": OPTIONS},
         but={"command": "python train.py --url env://"}),
    Case("hint", "the port is hard-coded", values={"program": "import os\nos.environ['MASTER_PORT'] = '29500'"},
         but={"program": "import os\nos.environ['MASTER_PORT']"}),
    Case("hint", "a save writes in place", values=COMMAND | {"program": SAVES},
         but={"program": "import torch\ntorch.save(x, 'temp.pt')"}),
    Case("hint", "a collective in a signal handler",
         values=COMMAND | {"program": TORCH.replace("sys.exit", "torch.distributed.barrier(); sys.exit")},
         but={"program": TORCH}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERDP_SITE", "")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("clusterdp.check.cluster.accounting.my_groups", lambda: {"people"})
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


def found(folder: Path, values: Mapping[str, Any], of: ClusterFacts, hosts: set[str] | None = None) -> list[Finding]:
    return [*all_findings(subject(folder, values), of, hosts or set())]


def matching(findings: list[Finding], said: str) -> list[Finding]:
    return [each for each in findings if said in f"{each.key}: {each.what}. {each.why}"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.said)
def test_check_reports_a_finding_only_for_its_faulty_config_or_cluster(case: Case, tmp_path: Path) -> None:
    values = {"resources": case.resources, **case.values}
    made = found(tmp_path, values, cluster(case.of_cluster))
    assert [each.level for each in matching(made, case.said)] == [case.level]
    assert all(each.what and each.why and each.remedy for each in made)
    of_config = ("program", "slurm_script", "launch", "checkpoint", "params", "script", "command", "restart")
    resources = {key: value for key, value in case.but.items() if key not in of_config}
    others = {key: value for key, value in case.but.items() if key in of_config}
    silent = {**case.values, **others, "resources": {**case.resources, **resources}}
    if case.but.get("gpus_per_task"):
        silent["resources"] = {"gpus_per_task": 1, "tasks_per_node": 2}
    but = cluster(case.of_cluster if case.but_cluster is None else case.but_cluster)
    assert not matching(found(tmp_path, silent, but), case.said)


def test_plain_config_has_no_finding(tmp_path: Path) -> None:
    values = {"resources": {"nodes": 2, "gpus_per_node": 2, "cpus_per_task": 4, "time": "4:00:00"}}
    assert found(tmp_path, values, cluster()) == found(tmp_path, values, ClusterFacts()) == []


def test_job_with_several_partitions_passes_if_any_partition_fits(tmp_path: Path) -> None:
    def errors(names: str) -> list[str]:
        values = {"resources": {"partition": names, "nodes": 4}}
        return [each.what for each in found(tmp_path, values, cluster()) if each.level == "error"]

    assert errors("gpu,main") == []
    assert len(errors("gpu,nowhere")) == 2


@pytest.mark.parametrize(
    ("limits", "nodes", "names", "refused"),
    [
        ("ALL", 4, "gpu,main", True),
        ("ALL", 3, "gpu,main", False),
        ("ALL", 4, "main,low", False),
        ("ANY", 4, "gpu,main", False),
        ("NO", 4, "gpu,main", False),
    ],
)
def test_every_partition_must_accept_the_job_under_enforcepartlimits_all(
    limits: str, nodes: int, names: str, refused: bool, tmp_path: Path
) -> None:
    values = {"resources": {"partition": names, "nodes": nodes}}
    of = cluster({"EnforcePartLimits": limits, "|3|32|": "|9|32|"})
    said = [each for each in found(tmp_path, values, of) if each.level == "error"]
    assert [("gpu allows 3 at most" in each.what, "EnforcePartLimits=ALL" in each.why) for each in said] == (
        [(True, True)] * refused
    )


def test_single_qos_of_an_association_is_compared_with_allowqos(tmp_path: Path) -> None:
    """Slurm gives it to a job that names none, also without enforcement."""
    for qos, refused in ((("normal",), True), (("vip",), False), (("normal", "vip"), False)):
        changes = {"AllowQos=ALL": "AllowQos=vip", "AccountingStorageType": "accounting_storage/slurmdbd"}
        of = cluster(changes, associations=[Association("vision", qos, is_default=True)])
        said = matching(found(tmp_path, {"resources": {"partition": "main"}}, of), "may not use main: AllowQos=vip")
        assert bool(said) is refused


def test_script_without_the_permission_to_execute_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    assert matching(found(tmp_path, {"command": ["./train.py"]}, cluster()), "./train.py is not executable")
    (tmp_path / "train.py").chmod(0o755)
    assert not matching(found(tmp_path, {"command": ["./train.py"]}, cluster()), "is not executable")


@pytest.mark.parametrize("limits", ["ALL", "ANY", "NO"])
def test_partition_allowqos_is_ignored_without_accounting(limits: str, tmp_path: Path) -> None:
    of = cluster({**NO_ACCOUNTING, "EnforcePartLimits": limits})
    said = found(tmp_path, {"resources": {"partition": "main", "qos": "vip"}}, of)
    assert not [each for each in said if "AllowQos" in each.what]


@pytest.mark.parametrize(
    ("limits", "admits"),
    [("AllowAccounts=vision", False), ("AllowQos=vip", False), ("DenyAccounts=vision", True), ("DenyQos=vip", True)],
)
def test_user_without_associations_is_checked_against_partition_allow_and_deny_lists(
    limits: str, admits: bool, tmp_path: Path
) -> None:
    changes = {f"{limits.partition('=')[0]}=ALL": limits} if "Allow" in limits else {"State=UP": f"State=UP {limits}"}
    values = {"resources": {"partition": "main", "account": "vision", "qos": "vip"}}
    for part_limits in ("NO", "ANY"):
        of = cluster({**changes, "SLURM_VERSION": "22.05.8", "EnforcePartLimits": part_limits}, is_stranger=True)
        is_refused = any(limits in each.what and each.level == "error" for each in found(tmp_path, values, of))
        assert is_refused == (not admits or (limits, part_limits) == ("DenyAccounts=vision", "ANY"))


@pytest.mark.parametrize("setting", ["MaxJobs", "GrpJobs", "MaxJobsPU", "MaxJobsPA"])
def test_association_or_qos_with_a_job_limit_of_zero_is_an_error(setting: str, tmp_path: Path) -> None:
    def errors(most: str) -> list[Finding]:
        limits = {setting: most}
        of_user = Association("vision", ("mine",), "mine", limits=limits if setting in ("MaxJobs", "GrpJobs") else {})
        facts = {"associations": [of_user], "qos": {"mine": limits if setting.startswith("MaxJobsP") else {}}}
        values = {"resources": {"account": "vision"}}
        return matching(found(tmp_path, values, cluster(ENFORCED, **facts)), f"allows no job to run: {setting}=0")

    assert [each.level for each in errors("0")] == ["error"]
    assert not errors("1")


@pytest.mark.parametrize(
    ("setting", "time", "enforced", "fits"),
    [
        ("MaxTRESMins=120", "60", "limits", True),
        ("MaxTRESMins=120", "61", "limits", False),
        ("GrpTRESMins=120", "61", "limits", True),
        ("GrpTRESMins=120", "60", "safe", True),
        ("GrpTRESMins=120", "61", "safe", False),
        ("GrpTRESMins=0", "1", "limits", False),
    ],
)
def test_job_over_a_qos_limit_of_cpu_minutes_is_an_error(
    setting: str, time: str, enforced: str, fits: bool, tmp_path: Path
) -> None:
    name, minutes = setting.split("=")
    facts = {"associations": [Association("vision", ("mine",), "mine")], "qos": {"mine": {name: f"cpu={minutes}"}}}
    values = {"resources": {"account": "vision", "nodes": 2, "time": time}}
    made = found(tmp_path, values, cluster({"AccountingStorageEnforce": enforced}, **facts))
    made = matching(made, f"the QOS mine allows {minutes} cpu minutes")
    assert [each.level for each in made] == ["error"] * (not fits)


@pytest.mark.parametrize(
    ("resources", "of_cluster", "key"),
    [
        ({"exclusive": True}, {}, "resources.exclusive"),
        ({}, {"OverSubscribe=NO": "OverSubscribe=EXCLUSIVE"}, "resources.partition"),
        ({}, {"OverSubscribe=NO": "Exclusive=NODE OverSubscribe=NO"}, "resources.partition"),
        ({}, {}, None),
    ],
)
def test_exclusive_job_is_counted_with_all_cpus_of_its_nodes(
    resources: Mapping[str, Any], of_cluster: Mapping[str, str], key: str | None, tmp_path: Path
) -> None:
    facts = {"associations": [Association("vision", ("mine",), "mine")], "accounts": {"vision": {"GrpTRES": "cpu=6"}}}
    of = cluster({**ENFORCED, **of_cluster}, **facts)
    made = found(tmp_path, {"resources": {"account": "vision", **resources}}, of)
    said = "8 CPUs, because the nodes are for this job alone, and the account vision allows 6 for all jobs together"
    assert [(each.level, each.key) for each in made if each.what == said] == ([("error", key)] if key else [])


QOS = {
    "short": {"MaxWall": "01:00:00", "MaxTRES": "node=2,gres/gpu=4", "MaxSubmitPU": "5", "Preempt": "scavenge"},
    "scavenge": {"GraceTime": "00:00:20", "PreemptMode": "requeue", "MaxWall": "", "MaxTRES": "", "MaxSubmitPU": ""},
    "typed": {"MaxTRES": "gres/gpu:a100=4"},
    "mine": {"MaxTRESPU": "gres/gpu=4,cpu=8", "Flags": "DenyOnLimit"},
    "long": {"MaxWall": "7-00:00:00"},
    "over": {"MaxWall": "7-00:00:00", "Flags": "DenyOnLimit,OverPartQOS"},
    "lifts": {"Flags": "PartitionTimeLimit,PartitionMaxNodes,PartitionMinNodes"},
}
ENFORCED = {"AccountingStorageEnforce": "associations,limits,qos"}


@pytest.mark.parametrize(
    ("said", "resources"),
    [
        ("time: 2:00:00 is more than the QOS short allows", {"qos": "short", "time": "2:00:00"}),
        ("time: 2:00:00 is more than the QOS short allows", {"time": "2:00:00"}),  # the default of the account
        ("time: UNLIMITED is more than the QOS short", {"qos": "short", "time": "UNLIMITED"}),
        ("nodes: 3 nodes, and the QOS short allows 2", {"qos": "short", "nodes": 3}),
        ("6 GPUs, and the QOS short allows 4", {"qos": "short", "nodes": 3, "gpus_per_node": 2}),
        ("8 a100 GPUs, and the QOS typed allows 4", {"qos": "typed", "nodes": 2, "gpus_per_node": "a100:4"}),
        ("6 GPUs, and the QOS mine allows 4 for each user. the job is refused",
         {"qos": "mine", "nodes": 3, "gpus_per_node": 2}),
        ("qos: none is none that you may use: ", {"qos": "none"}),
        ("account: visoin is none of your accounts", {"account": "visoin"}),
    ],
)  # fmt: skip
def test_accounting_limits_are_errors_only_if_enforced(said: str, resources: Any, tmp_path: Path) -> None:
    facts = {"qos": QOS, "associations": [Association("vision", tuple(QOS), "short")]}
    values = {"resources": {"account": "vision", **resources}}
    enforced = cluster(ENFORCED, **facts)
    assert [each.level for each in matching(found(tmp_path, values, enforced), said)] == ["error"]
    assert not matching(found(tmp_path, values, cluster({"AccountingStorageEnforce": "none"}, **facts)), said)
    if "qos" not in resources and "account" not in resources:  # a plugin may choose another
        assert not matching(found(tmp_path, values, cluster(ENFORCED | {"JobSubmitPlugins": "lua"}, **facts)), said)


ACCOUNTS = {
    "accounts": {"vision": {"GrpTRES": "cpu=64"}, "lab": {"GrpTRES": "cpu=32,node=4,mem=100G"}},
    "associations": [
        Association("vision", (), limits={"MaxWall": "01:00:00", "MaxTRES": "gres/gpu=4", "MaxSubmit": "5"}),
        Association("vision", (), "roomy", partition="gpu", limits={"MaxWall": "02:00:00"}),
        Association("nlp", (), partition="low"),
    ],
    "qos": {
        "roomy": {"GrpTRES": "cpu=128", "MaxWall": "1-00:00:00", "MaxSubmitPU": "50"},
        "big": {"MinTRES": "node=2,gres/gpu=1", "MaxTRESPA": "node=3", "MaxTRESPerNode": "mem=50G,cpu=8"},
    },
}


@pytest.mark.parametrize(
    ("said", "resources", "but"),
    [
        ("time: 2:00:00 is more than your account vision allows: 01:00:00", {"time": "2:00:00"}, {"qos": "roomy"}),
        ("time: 3:00:00 is more than your account vision", {"time": "3:00:00"}, {"partition": "gpu"}),  # by its QOS
        ("6 GPUs, and your account vision allows 4", {"nodes": 3, "gpus_per_node": 2}, {"nodes": 2}),
        ("40 CPUs, and the account lab allows 32 for all jobs", {"nodes": 5, "cpus_per_task": 8}, {"qos": "roomy"}),
        ("120000M of memory, and the account lab allows 100G", {"nodes": 4, "mem": "30000"}, {"nodes": 3}),
        ("nodes: 1 node, and the QOS big asks for 2 or more", {"qos": "big"}, {"nodes": 2}),
        ("0 GPUs, and the QOS big asks for 1 or more", {"qos": "big", "nodes": 2}, {"gpus_per_node": 1}),
        ("4 nodes, and the QOS big allows 3 for each account", {"qos": "big", "nodes": 4}, {"nodes": 3}),
        ("61440M of memory on a node, and the QOS big allows 50G", {"qos": "big", "mem": "60G"}, {"mem": "50G"}),
        (
            "10 CPUs on a node, and the QOS big allows 8",
            {"qos": "big", "cpus_per_task": 10},
            {"cpus_per_task": 8, "nodes": 2},
        ),
        ("account: you may use nlp in low alone, and not in main", {"account": "nlp"}, {"partition": "low"}),
    ],
)
def test_job_outside_an_account_or_qos_limit_is_an_error_unless_overridden(
    said: str, resources: Any, but: Any, tmp_path: Path
) -> None:
    def made(more: Any) -> list[Finding]:
        values = {"resources": {"account": "vision", **resources, **more}}
        return found(tmp_path, values, cluster(ENFORCED, **ACCOUNTS))

    assert [each.level for each in matching(made({}), said)] == ["error"]
    assert not matching(made(but), said.rpartition(", and ")[2])  # whatever is asked for


@pytest.mark.parametrize(
    ("qos", "elements", "by"),
    [
        (None, 6, "your account vision allows a user: 5"),
        (None, 5, ""),
        ("roomy", 6, ""),
        ("roomy", 51, "the QOS roomy allows"),
    ],
)
def test_sweep_with_too_many_jobs_for_its_account_or_qos_is_reported(
    qos: str | None, elements: int, by: str, tmp_path: Path
) -> None:
    values = {"resources": {"account": "vision", "qos": qos}}
    of = cluster(ENFORCED, **ACCOUNTS)
    made = [*all_findings(subject(tmp_path, values, elements=elements), of, set())]
    assert [by in each.what for each in made if each.key == "sweep"] == [True] * bool(by)


@pytest.mark.parametrize(
    ("of_partition", "qos", "hours", "by"),
    [
        ("short", "long", 2, "the QOS short"),  # that of the partition comes first
        ("short", "over", 2, ""),
        ("N/A", "long", 2, ""),
        ("typed", "short", 2, "the QOS short"),  # that of the partition has no such limit
        ("long", "short", 2, ""),
        ("N/A", "long", 72, "gpu allows: 2-00:00:00"),
        ("N/A", "lifts", 72, ""),
        ("lifts", "long", 72, ""),
    ],
)
def test_qos_of_the_partition_overrides_the_qos_of_the_job_unless_overpartqos(
    of_partition: str, qos: str, hours: int, by: str, tmp_path: Path
) -> None:
    of = cluster(ENFORCED | {"QoS=N/A": f"QoS={of_partition}"}, qos=QOS)
    values = {"resources": {"partition": "gpu", "qos": qos, "time": f"{hours}:00:00"}}
    made = [each for each in found(tmp_path, values, of) if each.level == "error"]
    assert len(made) == bool(by) and all(by in each.what for each in made)


def test_qos_flags_lift_the_node_limits_of_the_partition(tmp_path: Path) -> None:
    of = cluster({"MinNodes=0": "MinNodes=4", "|3|32|": "|9|32|"}, qos=QOS)
    for nodes in (2, 9):
        values = {"resources": {"partition": "gpu", "nodes": nodes}}
        assert matching(found(tmp_path, values, of), "resources.nodes: ")
        values["resources"]["qos"] = "lifts"
        assert not matching(found(tmp_path, values, of), "resources.nodes: ")


def test_check_judges_preemption_by_qos_not_partition_under_preempt_qos(tmp_path: Path) -> None:
    def preempted(qos: str) -> bool:
        of = cluster({"PreemptType": "preempt/qos"}, qos=QOS)
        values = {"resources": {"qos": qos, "partition": "low"}, "restart": {"requeue": False}}
        return bool(
            matching(found(tmp_path, values, of), "the QOS scavenge can be preempted: REQUEUE, a grace time of 20 s")
        )

    assert preempted("scavenge") and not preempted("short")
    of = cluster({"PreemptType": "preempt/qos"}, qos=QOS | {"scavenge": {"PreemptMode": "cancel"}})
    made = matching(found(tmp_path, {"resources": {"qos": "scavenge"}}, of), "the QOS scavenge can be preempted")
    assert [(each.key, "name another QOS" in each.remedy) for each in made] == [("resources.qos", True)]


@pytest.mark.parametrize(
    ("partition", "save_s", "lost"),
    [("low", 11.0, True), ("low", 9.0, False), ("low0", 6.0, True), ("low0", 4.0, False), ("main", 99.0, False)],
)
def test_save_too_slow_to_finish_between_sigterm_and_sigkill_is_reported(
    partition: str, save_s: float, lost: bool, tmp_path: Path
) -> None:
    of = subject(tmp_path, {"resources": {"partition": partition}}, LastRun(Path("runs/a-1"), 1, save_s))
    assert bool(matching([*all_findings(of, cluster(), set())], "lost at each preemption")) is lost


def test_too_little_disk_space_for_the_kept_checkpoints_is_an_error(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    free = status.f_bavail * status.f_frsize

    def errors(size: int, elements: int = 1) -> list[Finding]:
        of = subject(tmp_path, {"checkpoint": {"keep_last": 3}}, LastRun(Path("runs/a-1"), size, None), elements)
        return matching([*all_findings(of, cluster(), set())], "4 checkpoints of")

    assert [each.level for each in errors(free // 3)] == ["error"]
    assert not errors(free // 9)
    assert errors(free // 9, elements=3)


def test_too_little_disk_space_for_keep_local_checkpoint_copies_is_reported(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    last = LastRun(Path("runs/a-1"), status.f_bavail * status.f_frsize // 2, None)
    for keep_local, keys in ((0, []), (3, ["checkpoint.keep_local"])):
        of = subject(tmp_path, {"checkpoint": {"url": "s3://b/x", "keep_local": keep_local}}, last)
        assert [each.key for each in matching([*all_findings(of, cluster(), set())], "4 checkpoints of")] == keys


def test_sweep_larger_than_maxjobcount_is_reported(tmp_path: Path) -> None:
    def errors(elements: int) -> list[Finding]:
        return matching([*all_findings(subject(tmp_path, {}, elements=elements), cluster(), set())], "MaxJobCount")

    assert errors(10_001) and not errors(10_000)


def test_run_folder_on_a_local_filesystem_is_reported_if_nodes_are_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterdp.check.surroundings.storage_room.mount_of", lambda folder: ("/", "ext4"))
    assert matching(found(tmp_path, {}, cluster(), {"n1", "10.0.0.1"}), "is on ext4 of this machine")
    assert not matching(found(tmp_path, {}, cluster(), {"n1", "127.0.0.1"}), "of this machine")
    monkeypatch.setattr("clusterdp.check.surroundings.storage_room.mount_of", lambda folder: ("/", "nfs4"))
    assert not matching(found(tmp_path, {}, cluster(), {"n1", "10.0.0.1"}), "of this machine")


@pytest.mark.parametrize(
    ("name", "value", "resources", "leaks"),
    [
        ("CUDA_VISIBLE_DEVICES", "0", {}, True),
        ("CUDA_VISIBLE_DEVICES", "0", {"gpus_per_node": 1}, False),
        ("NCCL_SOCKET_IFNAME", "eth0", {}, True),
        ("CUDA_LAUNCH_BLOCKING", "1", {}, True),
        ("CUDA_LAUNCH_BLOCKING", "0", {}, False),
        ("OMP_NUM_THREADS", "4", {}, True),
        ("OMP_NUM_THREADS", "4", {"cpus_per_task": 4}, False),
        ("MASTER_ADDR", "n1", {}, False),  # the job sets or removes these itself
        ("SLURM_JOB_ID", "7", {}, False),
    ],
)
def test_harmful_environment_variable_passed_to_the_job_is_reported_unless_overridden(
    name: str, value: str, resources: Any, leaks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert bool(matching(found(tmp_path, {"resources": resources}, cluster()), f"{name}: {value}")) is leaks
    env = {"launch": {"env": {name: "1"}}, "resources": resources}
    assert not matching(found(tmp_path, env, cluster()), f"{name}: {value} is")


@pytest.mark.parametrize(
    ("ignored", "values", "level"),
    [
        ("train.py", {}, "error"),
        ("train.py", {"launch": {"modules": ["cuda"]}}, "error"),
        ("train.py", {"launch": {"setup": "cp ~/train.py ."}}, "warning"),
        ("train.py", {"snapshot": {"link": ["train.py"]}}, ""),
        ("train.py", {"command": "python {}/train.py"}, ""),
        ("model.py", {}, "error"),
        ("model.py", {"launch": {"modules": ["mine"]}}, "warning"),
        ("maybe.py", {}, "warning"),
        ("conf.yaml", {"command": "python train.py --config conf.yaml"}, "warning"),
        ("conf.yaml", {"command": "python train.py --config=./conf.yaml"}, "warning"),
        ("conf.yaml", {"command": "python train.py --output conf.yaml"}, ""),
        ("other.yaml", {"command": "python train.py --config conf.yaml"}, ""),
    ],
)
def test_program_module_or_config_file_ignored_by_git_is_reported(
    ignored: str, values: Mapping[str, Any], level: str, tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in (".gitignore", "model.py", "maybe.py", "conf.yaml"):
        (tmp_path / name).write_text(ignored if name == ".gitignore" else "")
    program = "import model\ntry:\n    import maybe\nexcept ImportError:\n    pass\n"
    given = COMMAND | {"program": program} | dict(values)
    given["command"] = str(given["command"]).format(tmp_path) if isinstance(given["command"], str) else given["command"]
    made = matching(found(tmp_path, given, cluster()), f"snapshot.link: {ignored}")
    assert [each.level for each in made] == [level] * bool(level)


@pytest.mark.parametrize(
    ("command", "values", "missing"),
    [
        ("python -u trian.py --lr 1", {}, True),
        ("bash trian.py", {}, True),
        ("./run.sh", {}, True),
        ("python train.py", {}, False),
        ("python -m trian.py", {}, False),
        ("python /opt/trian.py", {}, False),
        ("bash -c 'python trian.py'", {}, False),
        ("python trian.py", {"launch": {"setup": "cp ../trian.py ."}}, False),
        ("python trian.py", {"launch": {"container": {"image": "x.sqsh"}}}, False),
    ],
)
def test_missing_program_file_in_the_command_is_a_warning(
    command: str, values: Mapping[str, Any], missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # Debian has no `python`
    (tmp_path / "train.py").write_text("")
    made = matching(found(tmp_path, {"command": command, **values}, cluster()), "command: there is no")
    assert [each.level for each in made] == ["warning"] * missing
    assert not missing or "run.sh" in command or made[0].remedy == "Did you mean train.py?"


@pytest.mark.parametrize(
    ("lines", "remedy"),
    [
        ("python train.py", "exec python train.py"),
        ("python train.py\nexit $?", "exec python train.py"),
        ("python train.py\ncp last.pt /data", "trap 'kill -TERM $pid' TERM; python train.py & pid=$!"),
        ("python train.py | tee log", "trap 'kill"),
        ("exec python train.py", ""),
        ("python prepare.py\nexec python train.py", ""),
        ("trap : TERM\npython train.py &\nwait", ""),
    ],
)
def test_shell_wrapper_without_exec_or_trap_is_reported(lines: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "prepare.py").write_text("")
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\nsource env.sh\n{lines}\n")
    program = read_program(["bash", "run.sh"], tmp_path)
    of = replace(subject(tmp_path, {"command": "bash run.sh"}), program=program)
    made = matching([*all_findings(of, cluster(), set())], "neither exec nor a trap")
    assert [each.where for each in made] == ["run.sh:3"] * bool(remedy)
    assert all(each.remedy.startswith(remedy) for each in made)
    script = read_script(lines, tmp_path, tmp_path / "cfg.yaml")  # its shell has a trap of clusterdp's
    assert script and not script.shells


def test_check_knows_sbatch_options_of_every_release() -> None:
    assert {option.name for option in ever("sbatch")} <= KNOWN
