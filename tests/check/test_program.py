"""What is seen in a program's text: for each fact, texts where it is there and texts where it must not be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clusterdp.check.program import ProgramText, read_program, read_script
from clusterdp.check.program.command_words import missing_program

HANDLER = "import signal, sys, torch\ndef stop(number, frame):\n    {}\nsignal.signal(signal.SIGTERM, stop)\n"
METHOD = "import torch\nclass A:\n    def save({}): torch.save(x, {})\n"
STATIC = "import torch\nclass A:\n    @{}\n    def save({}): torch.save(x, path)\n"
SAVE = "import os, torch\ndef save(state, path):\n    {}\n"
# fact -> (texts that have it, each with its line; texts that do not have it)
FACTS: dict[str, tuple[list[tuple[int, str]], list[str]]] = {
    "handles_term": (
        [
            (4, HANDLER.format("pass")),
            (1, "import signal; signal.signal(15, print)"),
            (3, "from signal import signal, SIGTERM, SIGINT\nfor s in (SIGTERM, SIGINT):\n    signal(s, print)"),
            (2, "import asyncio, signal\nasyncio.get_event_loop().add_signal_handler(signal.SIGTERM, print)"),
            (2, "import signal\nsignal.signal(read_config(), print)"),  # it may be any
            (2, "import signal\nsignal.sigwait({signal.SIGTERM})"),
        ],
        [
            "import signal\nsignal.signal(signal.SIGUSR1, print)",
            "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
            "import os, signal\nos.kill(1, signal.SIGTERM)",
        ],
    ),
    "collective_in_handler": (
        [
            (3, HANDLER.format("torch.distributed.barrier()")),
            (6, HANDLER.format("save()") + "def save():\n    dist.barrier()\n"),
        ],
        [HANDLER.format("stopped.set()"), HANDLER.format("pass") + "torch.distributed.barrier()"],
    ),
    "exits_zero_in_handler": (
        [
            (3, HANDLER.format("sys.exit(0)")),
            (3, HANDLER.format("sys.exit()")),
            (6, HANDLER.format("leave()") + "def leave():\n    raise SystemExit()\n"),
        ],
        [
            HANDLER.format("sys.exit(75)"),
            HANDLER.format("global stopping; stopping = True") + "for x in y:\n    if stopping:\n        sys.exit(75)",
            HANDLER.format("global stop; stop = True") + "for x in y:\n    if stop: break\nsys.exit(75 if stop else 0)",
            HANDLER.format("pass") + "for x in y:\n    if found:\n        break",
        ],
    ),
    "saves_in_place": (
        [
            (2, "import torch\ntorch.save(model.state_dict(), 'last.pt')"),
            (3, "from torch import save\nwith open('last.pt', 'wb') as file:\n    save(x, file)"),
            (3, SAVE.format("torch.save(state, path.replace('a', 'b'))")),
            (3, "import torch\nclass A:\n    def save(self): torch.save(x, self.path)\n    def go(self): self.save()"),
            (3, METHOD.format("self, model", "self.path") + "A().save(make_temporary())"),
            (3, METHOD.format("self, model, path", "path") + "A().save(tmp_model, 'last.pt')"),
            (3, METHOD.format("self, model, *, path", "path") + "A().save(tmp_model, path='last.pt')"),
            (3, METHOD.format("self, model, path", "path") + "A.save(a, tmp_model, 'last.pt')"),
            (4, STATIC.format("staticmethod", "model, path") + "A().save(tmp_model, 'last.pt')"),
            (4, STATIC.format("classmethod", "cls, model, path") + "A.save(tmp_model, 'last.pt')"),
            (4, STATIC.format("classmethod", "cls, model, path='last.pt'") + "A.save(*buffers)"),
            (2, "from safetensors.torch import save_file\nsave_file(tensors, 'model.safetensors')"),
        ],
        [
            SAVE.format("torch.save(state, path + '.new'); os.replace(path + '.new', path)"),
            SAVE.format("torch.save(state, new); new.rename(path)"),
            SAVE.format("torch.save(state, path)") + "def both():\n    save(x, 'a.new')\n    os.rename('a.new', 'a')",
            "import torch, io\nbuffer = io.BytesIO()\ntorch.save(x, buffer)",
            METHOD.format("self, model, path", "path") + "A().save(model, io.BytesIO())",
            STATIC.format("staticmethod", "model, path") + "A().save(model, io.BytesIO())",
            "import torch\nwith atomic_write('last.pt', mode='wb') as f:\n    torch.save(x, f)",
            "import torch, fsspec\nfs = fsspec.filesystem('s3')\nwith fs.open('b/x', 'wb') as f: torch.save(x, f)",
            SAVE.format("torch.save(state, path); commit(path)") + "def commit(path):\n    os.replace(path, 'last.pt')",
            SAVE.format("torch.save(state, path); os.system(f'mv {path} last.pt')"),
        ],
    ),
    "fixed_ports": (
        [
            (2, "import argparse\np.add_argument('--dist-url', default='tcp://127.0.0.1:29500')"),
            (2, "import os\nos.environ['MASTER_PORT'] = '29500'"),
            (3, "import os\nPORT = 29500\nos.environ['MASTER_PORT'] = str(PORT)"),
            (2, "import os\nos.environ.update({'MASTER_PORT': '29500'})"),
            (2, "import torch.distributed as dist\ndist.init_process_group('nccl', init_method='tcp://localhost:29500')"),
            (2, "from torch.distributed import TCPStore\nTCPStore(host, 29500, 4)"),
        ],
        [
            "import os\nos.environ.setdefault('MASTER_PORT', '29500')",
            "import os\nif 'MASTER_PORT' not in os.environ:\n    os.environ['MASTER_PORT'] = '29500'",
            "import os\nos.environ['MASTER_PORT'] = str(free_port())",
            "import os\nos.environ['MASTER_PORT'] = f'{port}'",
            "import os\ntry:\n    os.environ['MASTER_PORT']\nexcept KeyError:\n    os.environ['MASTER_PORT'] = '29500'",
            "p.add_argument('--dist-url', default='env://', help='tcp://127.0.0.1:29500')",
            "import torch.distributed as dist\ndist.init_process_group('nccl', init_method='env://')",
        ],
    ),
}  # fmt: skip
HAS = [(fact, line, text) for fact, (texts, _) in FACTS.items() for line, text in texts]
LACKS = [(fact, text) for fact, (_, texts) in FACTS.items() for text in texts]


def facts_of(folder: Path, text: str) -> ProgramText:
    (folder / "train.py").write_text(text)
    found = read_program(["python", "train.py"], folder)
    assert found and found.complete
    return found


@pytest.mark.parametrize(("fact", "line", "text"), HAS)
def test_check_finds_signal_save_and_port_code_at_its_line(fact: str, line: int, text: str, tmp_path: Path) -> None:
    places = getattr(facts_of(tmp_path, text), fact)
    assert [(each.file, each.line) for each in places] == [(tmp_path / "train.py", line)]
    assert places[0].text == text.splitlines()[line - 1].strip()


@pytest.mark.parametrize(("fact", "text"), LACKS)
def test_similar_code_is_not_reported(fact: str, text: str, tmp_path: Path) -> None:
    assert not getattr(facts_of(tmp_path, text), fact)


LONG = "a" * 5000 + ".py"
MANY_SAVES = "\n".join(f"class C{i}:\n    def save(self, path): torch.save(self.x, path)" for i in range(330))
LONG_CHAIN = "\n".join(f"def f{i}(x):\n    torch.save(x, x)\n    f{i + 1}(x)" for i in range(330))


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        (f"import torch\n{MANY_SAVES}\n", True),
        (f"import torch\n{MANY_SAVES}\nfor each in many:\n    each.save('last.pt')\n", True),
        ("import torch\n" + "x = x + str(0)\n" * 1200 + "torch.save({}, x)", True),
        ("open(" + "+".join(["'a'"] * 1500) + ")", True),
        (f"import torch\n{LONG_CHAIN}\nf0(x)", False),
    ],
    ids=["many saves", "many saves of values", "a long text", "a long expression", "a long chain"],
)  # fmt: skip
def test_read_program_reads_a_long_program_in_under_five_cpu_seconds(text: str, complete: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    began = time.process_time()
    found = read_program(["python", "train.py"], tmp_path)
    assert found and found.complete is complete
    assert time.process_time() - began < 5, "it took 22 s for 100 classes with a save()"


@pytest.mark.parametrize(
    ("words", "files"),
    [
        ("python -u -W ignore train.py --lr 0.1", {"train.py", "pkg/__init__.py", "pkg/deep.py", "pkg/other.py"}),
        ("/opt/env/bin/python3.11 -m pkg.deep", {"pkg/deep.py", "pkg/__init__.py", "pkg/other.py"}),
        ("python -m pkg", {"pkg/__main__.py"}),
        ("torchrun --nproc_per_node 4 pkg/other.py", {"pkg/other.py"}),
        ("python -m torch.distributed.run --standalone -m pkg.other", {"pkg/other.py"}),
        ("accelerate launch --num_processes 4 pkg/other.py x.py", {"pkg/other.py"}),
        ("bash -x run.sh", {"pkg/other.py"}),
        ("./run.sh", {"pkg/other.py"}),
        ("numactl --localalloc python pkg/other.py", {"pkg/other.py"}),
    ],
)
def test_read_program_finds_the_python_files_run_by_a_command(words: str, files: set[str], tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (tmp_path / "train.py").write_text("import torch, pkg.deep\n")
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("")
    (package / "deep.py").write_text("from . import other\nfrom .other import x\n")
    (package / "other.py").write_text("x = 1\n")
    (tmp_path / "run.sh").write_text("#!/bin/bash\nset -e\nif true; then FOO=1 exec python \\\n  pkg/other.py; fi\n")
    found = read_program(words.split(), tmp_path)
    assert found and files <= {str(file.relative_to(tmp_path)) for file in found.files} <= files | {"pkg/__init__.py"}


@pytest.mark.parametrize("words", [f"{each} {LONG}" for each in ("python", "python -m", "bash", "torchrun", "")])
def test_read_program_finds_no_program_under_an_overlong_file_name(words: str, tmp_path: Path) -> None:
    assert read_program(words.split(), tmp_path) is None
    assert missing_program(words.split(), tmp_path) in ("", LONG)


@pytest.mark.parametrize("words", ["./train", "python -c pass", "python nowhere.py", "bash -c train.py", "python", ""])
def test_read_program_finds_no_program_in_a_command_without_a_script_file(words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert read_program(words.split(), tmp_path) is None


@pytest.mark.parametrize("text", ["x = (", "import importlib\nimportlib.import_module(name)", "\0"])
def test_program_with_invalid_syntax_or_dynamic_import_is_marked_incomplete(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    found = read_program(["python", "train.py"], tmp_path)
    assert found and not found.complete


def test_master_port_in_a_script_is_reported_unless_it_is_a_default(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    text = "export MASTER_PORT=${MASTER_PORT:-29500}\n# MASTER_PORT=1234\n{}python train.py --port 29500\n"
    place = tmp_path / "cfg.yaml"
    free = read_script(text.replace("{}", ""), tmp_path, place)
    fixed = read_script(text.replace("{}", "export MASTER_PORT=29501\n"), tmp_path, place)
    assert free and not free.fixed_ports
    assert fixed and [(each.line, each.text) for each in fixed.fixed_ports] == [(3, "export MASTER_PORT=29501")]
