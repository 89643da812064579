"""The model on disk: a file of JSON lines to which every change is appended, so that a killed daemon loses nothing.

The last line about a job, node, partition or row counts. A torn last line (killed while writing) is left out.
"""

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from clusterdp.slurm.state import JobState

from .accounting import Books, Row, StepRow
from .faults import Faults
from .model import Array, Het, Job, Model, Share, Step
from .spec import Gpus, JobSpec

GROWN = 32 << 20  # bytes


class Journal:
    def __init__(self, path: Path):
        self.path = path
        self._file = path.open("a", encoding="utf-8", errors="surrogateescape")
        self._at_first = self._file.tell()

    def write(self, kind: str, key: object, value: Any) -> None:
        """Appended to the page cache at `flush`: a kill -9 does not lose it, a power cut may."""
        self._file.write(json.dumps([kind, key, value], default=_plain) + "\n")

    def flush(self) -> None:
        self._file.flush()

    @property
    def grown(self) -> bool:
        """It is worth writing it again without what is outdated."""
        return self._file.tell() - self._at_first > GROWN  # what still counts may be more than that by itself

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def read(path: Path) -> Iterator[tuple[str, Any, Any]]:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                try:
                    kind, key, value = json.loads(line)
                except ValueError:
                    continue
                yield kind, key, value


def restore(path: Path, model: Model, books: Books) -> None:
    """Bring what the journal tells into the model and the books."""
    for kind, key, value in Journal.read(path):
        if kind == "job":
            model.jobs[int(key)] = job_from(value)
        elif kind == "row":
            value["steps"] = tuple(StepRow(**{**step, "nodes": tuple(step["nodes"])}) for step in value["steps"])
            books.restore(key, Row(**{**value, "nodes": tuple(value["nodes"])}))
        elif kind == "node" and key in model.nodes:
            for name, content in value.items():
                setattr(model.nodes[key], name, content)
        elif kind == "partition" and key in model.partitions:
            for name, content in value.items():
                setattr(model.partitions[key], name, content)
        elif kind == "next_id":
            model.next_id = value
        elif kind == "ahead":
            model.ahead_s = value
        elif kind == "faults":
            model.faults = Faults(**value)


def compact(path: Path, model: Model, books: Books) -> None:
    """The journal again, with only what still counts."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    journal = Journal(fresh)
    journal.write("next_id", 0, model.next_id)
    journal.write("ahead", 0, model.ahead_s)
    journal.write("faults", 0, model.faults)
    for job in model.jobs.values():
        journal.write("job", job.id, job)
    for node in model.nodes.values():
        journal.write("node", node.name, node)
    for partition in model.partitions.values():
        journal.write("partition", partition.name, partition)
    for key, row in books.rows.items():
        journal.write("row", key, row)
    journal.flush()
    journal.close()
    fresh.replace(path)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return vars(value)  # asdict would copy all that is below it: half of what an array job costs
    raise TypeError(f"{type(value).__name__} cannot be written to the journal")


def job_from(data: dict[str, Any]) -> Job:
    data = {name: content for name, content in data.items() if name in {field.name for field in fields(Job)}}
    spec = dict(data["spec"])
    spec["gpus"] = Gpus(**spec["gpus"])
    data["spec"] = JobSpec(**spec)
    data["array"] = Array(**data["array"]) if data["array"] else None
    data["het"] = Het(**data["het"]) if data.get("het") else None
    data["shares"] = [Share(**share) for share in data["shares"]]
    data["past"] = [Share(**share) for share in data["past"]]
    data["steps"] = [Step(**{**step, "state": JobState(step["state"])}) for step in data["steps"]]
    data["state"] = JobState(data["state"])
    data["outcome"] = JobState(data["outcome"]) if data["outcome"] else None
    return Job(**data)
