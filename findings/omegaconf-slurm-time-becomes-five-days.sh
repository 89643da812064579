#!/usr/bin/env bash
# A time limit in YAML, 2:00:00, reaches Slurm as 7200, which sbatch reads as minutes: five days. 00:30:00 arrives as it is.
#
# Package:   omegaconf 2.4.0, submitit 1.5.4
# Guess:     OmegaConf mends YAML 1.1's numbers (1e-4 is a float), and a field that is typed str keeps the text.
# Behaviour: a first digit 1 to 9 with colons is a whole number to the base 60, in files and in a dot list; the typed field
#            then turns the number into text, so that no type error tells. A leading 0 or a day (1-12:00:00) keeps the text.
# Seen 2026-11-29: time: 2:00:00 -> '7200' -> "#SBATCH --time=7200"; time: 00:30:00 -> '00:30:00'
# Matters:   a file that asks for 00:30:00 works, the next one waits behind every shorter job, or is refused by the
#            partition's limit. Quote the time.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet omegaconf==2.4.0 submitit==1.5.4
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import dataclasses
import shutil
import sys

import submitit
from omegaconf import OmegaConf


@dataclasses.dataclass
class Resources:
    time: str = "1:00:00"
    lr: float = 0.1


def directive(time):
    shutil.which = lambda name: name  # submitit asks only whether srun is there; nothing is submitted
    executor = submitit.SlurmExecutor(folder=sys.argv[1])
    executor.update_parameters(time=time)
    lines = executor._make_submission_file_text("python train.py", "job").splitlines()
    return next(line for line in lines if "--time" in line)


for written in "2:00:00", "00:30:00", "1-12:00:00":
    config = OmegaConf.merge(Resources, OmegaConf.create(f"time: {written}\nlr: 1e-4"))
    dotted = OmegaConf.merge(Resources, OmegaConf.from_dotlist([f"time={written}"]))
    assert dotted.time == config.time and config.lr == 0.0001
    print(f"time: {written} -> {config.time!r} -> {directive(config.time)}")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what OmegaConf makes of a time limit is not what this file states"; exit 1; }
time: 2:00:00 -> '7200' -> #SBATCH --time=7200
time: 00:30:00 -> '00:30:00' -> #SBATCH --time=00:30:00
time: 1-12:00:00 -> '1-12:00:00' -> #SBATCH --time=1-12:00:00
EXPECTED
