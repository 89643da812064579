"""A job for tables of decisions."""

from __future__ import annotations

from typing import Any

from clusterdp.batch.files.job import Job


def job(**values: Any) -> Job:
    usual: dict[str, Any] = {
        "run": "/run",
        "script": "/run/job.sbatch",
        "id": "7",
        "number": 7,
        "element": "",
        "restart": 0,
        "life": 0,
        "nodes": "n1",
        "node_count": 1,
        "partition": "main",
        "host": "n1",
        "chain": "7",
        "replaces": "",
        "replaced_log": "7",
        "unwritten": 0,
    }
    return Job(**{**usual, **values})
