"""Subjects and clusters from texts: the answers of scontrol and sinfo as they were recorded, with changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterdp import config
from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.program import read_python_file
from clusterdp.check.subject import LastRun, Subject
from clusterdp.slurm.nodes import read_sinfo
from clusterdp.submission.render.script_spec import make_spec

SINFO = """\
main*|up|idle|4|8|16000|gpu:2|(null)|infinite|1-infinite
low|up|idle|4|8|16000|gpu:2|(null)|infinite|1-infinite
gpu|up|mixed|3|32|512000|gpu:a100:4(S:0-1)|a100,nvlink|2-00:00:00|1-3
gpu|up|down*|1|32|512000|gpu:a100:4|a100|2-00:00:00|1-3
"""
PARTITION = (
    "PartitionName={} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default={} QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime={} Hidden=NO MaxNodes={} MaxTime={} MinNodes=0 "
    "MaxCPUsPerNode=UNLIMITED Nodes=n[1-4] PriorityJobFactor=1 PriorityTier={} RootOnly=NO ReqResv=NO OverSubscribe=NO "
    "OverTimeLimit=NONE PreemptMode={} State=UP TotalCPUs=32 TotalNodes=4 SelectTypeParameters=NONE "
    "JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED"
)
PARTITIONS = "\n".join([
    PARTITION.format("main", "YES", 0, "UNLIMITED", "UNLIMITED", 10, "OFF"),
    PARTITION.format("low", "NO", 10, "UNLIMITED", "UNLIMITED", 1, "REQUEUE"),
    PARTITION.format("low0", "NO", 0, "UNLIMITED", "UNLIMITED", 1, "REQUEUE"),
    PARTITION.format("gpu", "NO", 0, 3, "2-00:00:00", 10, "OFF"),
])  # fmt: skip
SETTINGS = {
    "AccountingStorageEnforce": "none",
    "JobRequeue": "1",
    "KillWait": "5 sec",
    "MaxArraySize": "1001",
    "MaxJobCount": "10000",
    "PreemptMode": "REQUEUE",
    "PreemptType": "preempt/partition_prio",
    "PriorityType": "priority/basic",
}


def cluster(changes: Mapping[str, str] | None = None, **fields: Any) -> ClusterFacts:
    """changes: texts in scontrol's and sinfo's answers, and what to write instead; or a setting and its value."""
    changes = changes or {}
    shown, sinfo = PARTITIONS, SINFO
    for old, new in changes.items():
        shown, sinfo = shown.replace(old, new), sinfo.replace(old, new)
    limits = [dict(pair.split("=", 1) for pair in line.split()) for line in shown.splitlines()]
    settings = SETTINGS | {name: value for name, value in changes.items() if name.isidentifier()}
    return ClusterFacts(
        read_sinfo(sinfo.splitlines()), {each["PartitionName"]: each for each in limits}, settings, **fields
    )


def subject(folder: Path, values: Mapping[str, Any], last: LastRun | None = None, elements: int = 1) -> Subject:
    """Of a config. `program`: the text of train.py. `slurm_script`: that of the rendered script."""
    values = dict(values)
    text, script = values.pop("program", None), values.pop("slurm_script", "")
    if not {"entry", "command", "script"} & set(values):
        values["entry"] = "train:main"
    program = None
    if text is not None:
        (folder / "train.py").write_text(text)
        program = read_python_file(folder / "train.py", folder)
    spec = make_spec(config.from_mapping(values), folder / "runs" / "x", folder, "python")
    sources = {f"{section}.{key}": "cfg.yaml:1" for section, of in values.items() if isinstance(of, dict) for key in of}
    return Subject(spec, sources, script, elements, last, program)
