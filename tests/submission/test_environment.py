from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from clusterdp.submission.snapshot.batch_copy import PROGRAM

SRUN = 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"'
SCRIPT = 'cd "$1"; archive=env.tar; CLUSTERDP_SETUP_FAILED=; . "$2"; echo "$CLUSTERDP_SETUP_FAILED"'


@pytest.mark.parametrize(("sent", "said"), [("10M", ""), ("1k", "launch.environment: env.tar cannot be unpacked")])
def test_part_of_an_archive_is_never_taken_for_the_environment(sent: str, said: str, tmp_path: Path) -> None:
    """sbcast leaves a part behind when it fails, here one that tar takes for whole."""
    (tmp_path / "bin").mkdir()
    for name, lines in {"srun": SRUN, "sbcast": f'head -c {sent} "$2" >"$3"', "python": "exit 0"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{lines}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "data").write_bytes(bytes(10_000))
    with tarfile.open(tmp_path / "env.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(tmp_path / "bin" / "python", arcname="bin/python")
        archive.add(tmp_path / "data", arcname="data")
    job = f"test-{os.getpid()}-{sent}"
    environ = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": job}
    words = ["bash", "-c", SCRIPT, "script", tmp_path, PROGRAM / "environment.bash"]
    environ["SLURM_JOB_NUM_NODES"] = "1"
    try:
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True, timeout=60)
    finally:
        subprocess.run(["rm", "-rf", f"/tmp/clusterdp-{os.getuid()}-{job}"], check=True)
    assert done.stdout.startswith(said) and bool(done.stdout.strip()) == bool(said), done.stderr
