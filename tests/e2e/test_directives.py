"""What a config asks of sbatch arrives at the controller as it was written, whatever characters it has."""

from __future__ import annotations

import re
from pathlib import Path

from clusterdp.submission.render.script import directive
from tests.e2e.cluster import Cluster
from tests.submission.conftest import HOSTILE

TEXTS = [text.strip() for text in HOSTILE if "\n" not in text and text.strip()]


def test_sbatch_reads_every_quoted_directive_text_unchanged(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    read: list[str] = []
    for text in TEXTS:
        lines = ["#!/bin/bash", f"#SBATCH {directive('comment', text)}", "#SBATCH --hold --output=/dev/null", "true"]
        script.write_text("\n".join(lines) + "\n")
        job = cluster.run("sbatch", "--parsable", str(script)).strip()
        shown = re.search(r"Comment=(.*?) ?$", cluster.run("scontrol", "show", "job", job), re.MULTILINE)
        read.append(shown[1] if shown else "")
        cluster.run("scancel", job)
    assert read == TEXTS
