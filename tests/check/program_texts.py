"""83 programs of many styles, each with the hints that `check` gives on its text, and the faults left to `rehearse`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# Hint -> what stands in its words.
HINTS = {
    "in-place": "writes in place",
    "term": "handles SIGTERM",
    "unhandled": "is sent, and nothing",
    "exit-0": "ends with 0",
    "collective": "a collective in a signal handler",
    "port": "port is hard-coded",
    "shell": "neither exec nor a trap",
    "missing": "there is no",
    "node-disk": "node's own disk",
    "copies": "nothing in it forms a process group",
    "all-save": "all ranks save to one file",
    "one-handles": "handled on some ranks alone",
}


class Program(NamedTuple):
    """`files`: beside train.py. `hints`: of HINTS. `left`: true faults that the text does not show for sure."""

    name: str
    text: str
    hints: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    values: Mapping[str, Any] = {}
    files: Mapping[str, str] = {}


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _faulty(name: str, text: str, hints: str, left: str = "", files: Mapping[str, str] = {}, **values: Any) -> Program:
    return Program(name, text, _set(hints), _set(left), values, files)


def _correct(name: str, text: str, files: Mapping[str, str] = {}, **values: Any) -> Program:
    return Program(name, text, values=values, files=files)


# A handler, a process group, a GPU for each rank, and a load.
GOOD = """\
import asyncio, contextlib, functools, os, pathlib, shutil, signal, subprocess, sys, tempfile, threading, torch
import torch.distributed as dist
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
dist.init_process_group()
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
state = torch.load("last.pt") if os.path.exists("last.pt") else {}
"""
# The same on rank 0 alone.
ALONE = GOOD + "if rank != 0: sys.exit()\n"
# The same without a word on devices.
NO_DEVICE = "\n".join(line for line in GOOD.splitlines() if "local_rank" not in line) + "\nrank = dist.get_rank()\n"
# The same without a handler.
NO_HANDLER = GOOD.replace("signal.signal(signal.SIGTERM, lambda *_: stop.set())\n", "")
ATOMIC = 'if rank == 0:\n    torch.save(state, "last.new")\n    os.replace("last.new", "last.pt")\n'
NANO = """\
import os, torch
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
init_process_group(backend='nccl')
ddp_rank, ddp_local_rank = int(os.environ['RANK']), int(os.environ['LOCAL_RANK'])
device = f'cuda:{ddp_local_rank}'
torch.cuda.set_device(device)
master_process = ddp_rank == 0
if init_from == 'resume':
    checkpoint = torch.load(os.path.join(out_dir, 'ckpt.pt'), map_location=device)
while True:
    if losses['val'] < best_val_loss and master_process:
        torch.save(checkpoint, os.path.join(out_dir, 'ckpt.pt'))
    loss.backward()
"""
CLASS = """\
class Trainer:
    def __init__(self, path):
        self.path, self.state = path, state
    def fit(self):
        for step in range(9):
            {}
    {}
"""
MAIN = "if rank == 0:\n    Trainer('last.pt').fit()\n"
USR2 = {"launch": {"signal": "USR2@120"}}

FAULTY = [
    _faulty("output folder of a command", GOOD + ATOMIC, "node-disk", command="python train.py --out /tmp/run1"),
    _faulty("checkpoint of a command", GOOD + ATOMIC, "node-disk", command="python train.py ckpt=/dev/shm/a.pt"),
    _faulty(
        "open of a path",
        GOOD + "out = pathlib.Path(sys.argv[1]) / 'last.pt'\nif not rank:\n"
        "    with out.open('wb') as f: torch.save(state, f)",
        "in-place",
    ),
    _faulty(
        "compressed",
        GOOD + "import gzip\nif not rank:\n    with gzip.open('a.gz', 'wb') as f: torch.save(state, f)",
        "in-place",
    ),
    _faulty("nanoGPT", NANO, "in-place term"),
    _faulty(
        "method without arguments",
        GOOD + CLASS.format("self.save()", "def save(self): torch.save(self.state, self.path)") + MAIN,
        "in-place",
    ),
    _faulty(
        "method with an argument",
        GOOD
        + CLASS.format("self.save(step)", "def save(self, step): torch.save(self.state, f'{self.path}-{step}')")
        + MAIN,
        "in-place",
    ),
    _faulty(
        "property",
        GOOD
        + CLASS.format("torch.save(self.state, self.file)", "@property\n    def file(self): return self.path + '.pt'")
        + MAIN,
        "in-place",
    ),
    _faulty(
        "static method",
        GOOD
        + CLASS.format("self.dump(self.state, 'last.pt')", "@staticmethod\n    def dump(x, path): torch.save(x, path)")
        + MAIN,
        "in-place",
    ),
    _faulty(
        "class method of a temporary model",
        GOOD
        + CLASS.format(
            "self.dump(self.temp, 'last.pt')", "@classmethod\n    def dump(cls, x, path): torch.save(x, path)"
        )
        + MAIN,
        "in-place",
    ),
    _faulty("keywords", GOOD + "if rank == 0: torch.save(obj=state, f='last.pt')", "in-place"),
    _faulty("open file", GOOD + "if not rank:\n    with open('last.pt', 'wb') as f: torch.save(state, f)", "in-place"),
    _faulty(
        "pathlib", GOOD + "out = pathlib.Path(sys.argv[1])\nif not rank: torch.save(state, out / 'last.pt')", "in-place"
    ),
    _faulty(
        "async",
        GOOD + "async def save():\n    await asyncio.to_thread(torch.save, state, 'last.pt')\n"
        "if rank == 0: asyncio.run(save())",
        "in-place",
    ),
    _faulty(
        "executor",
        GOOD + "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
        "if rank == 0: pool.submit(torch.save, state, 'last.pt')",
        "in-place",
    ),
    _faulty(
        "lambda", GOOD + "save = lambda step: torch.save(state, f'ckpt_{step}.pt')\nif rank == 0: save(1)", "in-place"
    ),
    _faulty(
        "partial", GOOD + "save = functools.partial(torch.save, f='last.pt')\nif rank == 0: save(state)", "in-place"
    ),
    _faulty(
        "safetensors of a model",
        GOOD + "from safetensors.torch import save_model\nif rank == 0: save_model(model, 'model.safetensors')",
        "in-place",
    ),
    _faulty(
        "hydra",
        "import hydra\n" + GOOD + "@hydra.main(config_path='conf')\ndef main(cfg):\n"
        "    if rank == 0: torch.save(state, os.path.join(cfg.out, 'last.pt'))\nmain()",
        "in-place",
    ),
    _faulty(
        "best in place, last renamed", GOOD + ATOMIC + "if rank == 0: torch.save(state, 'best.pt')", "", left="in-place"
    ),
    _faulty("all ranks save", GOOD + "torch.save(state, 'last.pt')", "in-place", left="all-save"),
    _faulty(
        "one rank handles",
        NO_HANDLER + "if rank == 0: signal.signal(signal.SIGTERM, print)\n" + ATOMIC,
        "",
        left="one-handles",
    ),
    _faulty(
        "ImageNet of argparse",
        GOOD + "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--dist-url', default='tcp://224.66.41.62:23456')\n" + ATOMIC,
        "port",
    ),
    _faulty(
        "init_method of an f-string",
        GOOD + "dist.init_process_group('nccl', init_method=f'tcp://{sys.argv[1]}:29500')\n" + ATOMIC,
        "port",
    ),
    _faulty(
        "init_method by its place", GOOD + "dist.init_process_group('gloo', 'tcp://localhost:29500')\n" + ATOMIC, "port"
    ),
    _faulty(
        "port of torchrun in a script",
        GOOD + ATOMIC,
        "port",
        command="bash run.sh",
        files={"run.sh": "#!/bin/bash\nexec torchrun --nproc_per_node 2 --master_port 29501 train.py\n"},
    ),
    _faulty(
        "port of accelerate in a script",
        GOOD + ATOMIC,
        "port",
        command="bash run.sh",
        files={"run.sh": "exec accelerate launch --main_process_port=29501 train.py\n"},
    ),
    _faulty(
        "shell without exec",
        GOOD + ATOMIC,
        "shell",
        command="bash run.sh",
        files={"run.sh": "#!/bin/bash\nsource env.sh\npython train.py\n"},
    ),
    _faulty("one GPU's program", "import torch\nloss = model(x)\nloss.backward()", "copies term"),
    _faulty(
        "barrier in a handler",
        NO_HANDLER + "def stop(*_):\n    save()\ndef save():\n    dist.barrier()\n"
        "signal.signal(signal.SIGTERM, stop)\n" + ATOMIC,
        "collective",
    ),
    _faulty(
        "exit with 0",
        NO_HANDLER + "def bye(*_): sys.exit(0)\nfor n in (signal.SIGTERM, signal.SIGUSR2):\n"
        "    signal.signal(n, bye)\n" + ATOMIC,
        "exit-0",
        **USR2,
    ),
    _faulty("a signal without a handler", GOOD + ATOMIC, "unhandled", **USR2),
    _faulty("a slip in the name", "", "missing", command="python trian.py"),
    _faulty(
        "module of a package",
        "",
        "in-place",
        command="python -m pkg.fit",
        files={
            "pkg/fit.py": GOOD + "from . import io\nif rank == 0: io.dump(state)",
            "pkg/io.py": "import torch\ndef dump(x, path='last.pt'): torch.save(x, path)",
        },
    ),
]

CORRECT = [
    _correct("data of a command", GOOD + ATOMIC, command="python train.py --data-out /tmp/x --cache=/tmp/out"),
    _correct(
        "storage of an own class",
        ALONE + "with storage.open('last.pt') as f:\n    torch.save(state, f)\n"
        "with storage.write('last.pt') as f: torch.save(state, f)",
    ),
    _correct(
        "fsspec by url",
        ALONE + "import fsspec\nfs, path = fsspec.core.url_to_fs(sys.argv[1])\nf = fs.open(path, 'wb')\n"
        "torch.save(state, f)",
    ),
    _correct(
        "port without torchrun",
        GOOD + "if not dist.is_torchelastic_launched():\n    os.environ['MASTER_PORT'] = '29500'\n"
        "if args.debug:\n    os.environ['MASTER_PORT'] = '29501'\n" + ATOMIC,
    ),
    _correct("evaluation on rank 0", NO_DEVICE + "if rank == 0: model.to('cuda:0')\n" + ATOMIC),
    _correct(
        "nanoGPT with a rename",
        "import signal\nsignal.signal(signal.SIGTERM, print)\n"
        + NANO.replace("'ckpt.pt'))\n    loss", "'new'))\n        os.replace(new, old)\n    loss"),
    ),
    _correct(
        "method that renames",
        ALONE
        + CLASS.format(
            "self.save()",
            "def save(self):\n"
            "        torch.save(self.state, self.path + '.new')\n        os.replace(self.path + '.new', self.path)",
        ),
    ),
    _correct(
        "rename in a thread",
        GOOD + "import queue\nq = queue.Queue()\ndef commit():\n    while path := q.get():\n"
        "        os.replace(path, path[:-4])\nthreading.Thread(target=commit).start()\n"
        "if rank == 0:\n    torch.save(state, 'last.pt.new')\n    q.put('last.pt.new')",
    ),
    _correct(
        "rename in another class",
        ALONE + "class Files:\n    def commit(self, new):\n        pathlib.Path(new).rename('a')\n"
        "class Saver:\n    def save(self): torch.save(state, self.new)\n"
        "    def done(self): self.files.commit(self.new)",
    ),
    _correct(
        "contextlib",
        GOOD + "@contextlib.contextmanager\ndef final(path):\n    with open(path + '~', 'wb') as f:\n"
        "        yield f\n    os.replace(path + '~', path)\nif rank == 0:\n    with final('last.pt') as f:\n"
        "        torch.save(state, f)",
    ),
    _correct(
        "fsspec", ALONE + "import fsspec\nwith fsspec.open('s3://b/last.pt', 'wb') as f:\n    torch.save(state, f)"
    ),
    _correct("bytes", ALONE + "import io\ndef pack(x, f): torch.save(x, f)\nout = io.BytesIO()\npack(state, out)"),
    _correct(
        "method that is given a buffer",
        ALONE + "import io\nclass P:\n    def pack(self, x, f): torch.save(x, f)\nP().pack(state, io.BytesIO())",
    ),
    _correct(
        "NamedTemporaryFile",
        ALONE + "with tempfile.NamedTemporaryFile(dir='.', delete=False) as f:\n"
        "    torch.save(state, f)\nos.replace(f.name, 'last.pt')",
    ),
    _correct("mv of a shell", ALONE + "torch.save(state, 'new')\nsubprocess.run(['mv', 'new', 'last.pt'])"),
    _correct(
        "link to the newest",
        ALONE + "torch.save(state, 'step_9.pt')\nos.symlink('step_9.pt', 'new')\nos.replace('new', 'last.pt')",
    ),
    _correct(
        "own library",
        "import ourlab\nimport torch\nourlab.begin()\nloss.backward()\n"
        "torch.save(state, ourlab.path('last.pt.tmp'))\nos.replace(a, b)",
    ),
    _correct("Lightning", "import torch, lightning as L\nL.Trainer(num_nodes=2).fit(model, ckpt_path='last')"),
    _correct(
        "Trainer that resumes",
        "import signal, torch\nfrom transformers import Trainer\n"
        "signal.signal(signal.SIGTERM, print)\nTrainer(args=args).train(resume_from_checkpoint=True)",
    ),
    _correct(
        "accelerate",
        "import signal\nfrom accelerate import Accelerator\nsignal.signal(signal.SIGTERM, print)\n"
        "a = Accelerator()\na.load_state('last')\na.backward(loss)\na.save_state('last')",
    ),
    _correct(
        "star import",
        "import torch\nfrom signal import *\nsignal(SIGTERM, print)\n"
        + NO_HANDLER[NO_HANDLER.index("import torch.dist") :].replace("stop = threading.Event()\n", "import os\n"),
    ),
    _correct("handler by keywords", NO_HANDLER + "signal.signal(signalnum=signal.SIGTERM, handler=print)\n" + ATOMIC),
    _correct("handler of a pair", NO_HANDLER + "pair = (signal.SIGTERM, print)\nsignal.signal(*pair)\n" + ATOMIC),
    _correct(
        "handler of asyncio",
        NO_HANDLER + "asyncio.get_event_loop().add_signal_handler(\n    sig=signal.SIGTERM, callback=print)\n" + ATOMIC,
    ),
    _correct(
        "handler in a module",
        NO_HANDLER + "import stops\nstops.install()\n" + ATOMIC,
        files={
            "stops.py": "import signal\ndef install():\n    for n in (signal.SIGTERM, signal.SIGUSR2):\n"
            "        signal.signal(n, print)"
        },
        **USR2,
    ),
    _correct(
        "flag and exit 75",
        NO_HANDLER + "for n in ('SIGTERM', 'SIGUSR2'):\n"
        "    signal.signal(getattr(signal, n), lambda *_: stop.set())\nfor x in y:\n    if stop.is_set(): break\n"
        "raise SystemExit(75 if stop.is_set() else 0)",
        **USR2,
    ),
    _correct(
        "own requeue in a handler",
        NO_HANDLER + "def on(*_):\n    os.system('scontrol requeue $SLURM_JOB_ID')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGUSR2, on)\nsignal.signal(signal.SIGTERM, on)\n",
        **USR2,
    ),
    _correct(
        "own requeue",
        NO_HANDLER + "def on(*_):\n    global asked\n    asked = True\n"
        "signal.signal(signal.SIGUSR2, on)\nsignal.signal(signal.SIGTERM, on)\nfor x in y:\n    if asked:\n"
        "        subprocess.run(['scontrol', 'requeue', os.environ['SLURM_JOB_ID']])\n        break",
        **USR2,
    ),
    _correct("port of the environment", GOOD + "os.environ.setdefault('MASTER_PORT', '29500')\n" + ATOMIC),
    _correct(
        "port if there is none",
        GOOD + "if not os.environ.get('MASTER_PORT'): os.environ['MASTER_PORT'] = '29500'\n"
        "dist.init_process_group('nccl', f'tcp://{host}:{port}')\n" + ATOMIC,
    ),
    _correct(
        "GPU of a wrapper",
        NO_DEVICE + "model.to('cuda:0')\n" + ATOMIC,
        command="bash run.sh",
        files={"run.sh": "export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\nexec python train.py\n"},
    ),
    _correct(
        "GPU of each task",
        NO_DEVICE + "model.cuda()\n" + ATOMIC,
        resources={"nodes": 2, "tasks_per_node": 2, "gpus_per_task": 1},
    ),
    _correct(
        "GPU bound by Slurm",
        NO_DEVICE + "model.cuda()\n" + ATOMIC,
        resources={"nodes": 2, "gpus_per_node": 2, "tasks_per_node": 2, "extra": {"gpu-bind": "single:1"}},
    ),
    _correct("load on rank 0", GOOD + "if rank == 0: x = torch.load('a.pt', map_location='cuda:0')\n" + ATOMIC),
    _correct(
        "data on the node", GOOD + "os.makedirs('/tmp/data', exist_ok=True)\nopen('/tmp/data/a.bin', 'wb')\n" + ATOMIC
    ),
    _correct(
        "upload from the node",
        ALONE + "out = tempfile.mkdtemp()\ntorch.save(state, out + '/last.pt')\n"
        "shutil.copy(out + '/last.pt', 'new')\nos.replace('new', 'last.pt')",
    ),
    _correct("load by an own name", GOOD.replace("torch.load", "restore") + ATOMIC),
    _correct(
        "shell with exec",
        GOOD + ATOMIC,
        command="bash run.sh",
        files={"run.sh": "#!/bin/bash\nset -e\nexec python train.py\n"},
    ),
]

PROGRAMS = [*FAULTY, *CORRECT]
