"""The five tasks in four libraries: lines of code, printed lines, and the accuracy that each reaches.

    pip install lightning==2.6.6 keras==3.15 skorch==1.4
    python -m tests.benchmarks.five_tasks

A line of code is a line of the task's function below its head, as ruff formats it; for Lightning, also of its module,
which each task needs. Each program runs in a process of its own, and `resume` in two, of which the second continues.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TASKS = ("classify", "stop_early", "resume", "mixed", "predict")
LIBRARIES = ("clusterdp", "lightning", "keras", "skorch")
LEAST = 0.85  # accuracy
PROGRAM = """
import sys
import torch
from tests.benchmarks.five_tasks import data, with_{library} as program
train, val, test = data.load()
more = [sys.argv[1], int(sys.argv[2])] if "{task}" == "resume" else []
if "{library}" in ("keras", "skorch"):
    train, val, test = (tuple(each.numpy() for each in part) for part in (train, val, test))
found = program.{task}(train, val, test, *more)
right = torch.as_tensor(found) == torch.as_tensor(test[1])
accuracy = float(right.double().mean()) if "{task}" == "predict" else float(found)
sys.__stderr__.write(f"\\naccuracy {{accuracy}}\\n")
"""


def lines_of(library: str, task: str) -> int:
    """Returns the number of lines of a program that are neither blank nor its head or docstring."""
    text = Path(__file__).with_name(f"with_{library}.py").read_text()
    lines, counted = text.splitlines(), 0
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == task:
            first = node.lineno
        elif library == "lightning" and isinstance(node, ast.ClassDef):
            first = node.lineno - 1
        else:
            continue
        counted += sum(bool(line.strip()) and '"""' not in line for line in lines[first : node.end_lineno])
    return counted


def run(library: str, task: str, folder: str, epochs: int = 0) -> tuple[int, float]:
    """Returns the number of printed lines, and the accuracy."""
    env = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), env.get("PYTHONPATH", "")]))
    program = PROGRAM.format(library=library, task=task)
    command = [sys.executable, "-c", program, folder, str(epochs)]
    done = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    *printed, last = done.stdout.strip().splitlines() or [""]
    if done.returncode or not last.startswith("accuracy "):
        raise SystemExit(f"{library} {task}:\n{done.stdout[-2000:]}")
    return len([line for line in printed if line.strip()]), float(last.split()[1])


def main() -> int:
    behind = []
    print(f"{'lines of code / printed lines / accuracy':<12}")
    print(f"{'':<12}" + "".join(f"{name:>22}" for name in LIBRARIES))
    for task in TASKS:
        cells = []
        for library in LIBRARIES:
            with tempfile.TemporaryDirectory() as folder:
                printed, accuracy = run(library, task, folder, 3)
                if task == "resume":
                    printed, accuracy = run(library, task, folder, 8)
            if accuracy < LEAST:
                raise SystemExit(f"{library} {task}: an accuracy of {accuracy:.3f}")
            cells.append(f"{lines_of(library, task):>8} /{printed:>4} /{accuracy:>6.3f}")
        counts = [lines_of(library, task) for library in LIBRARIES]
        behind.append(counts[0] - min(counts))
        print(f"{task:<12}" + "".join(cells), flush=True)
    print(f"lines behind the shortest: {', '.join(map(str, behind))}")
    return int(sorted(behind)[-2] > 0 or max(behind) > 1)


if __name__ == "__main__":
    raise SystemExit(main())
