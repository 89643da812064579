"""--json of sacct."""

from __future__ import annotations

from typing import Protocol

from ...core.hostlist import compress
from ...slurmctld.controller import Controller
from ...slurmdbd.accounting import OF_PARTITION, AccountingJob, AccountingStep
from . import json_defaults as defaults
from .as_json import Json, JsonWriter
from .as_newer_json import NewerJsonWriter
from .json_defaults import number


class SacctJson(Protocol):
    """The methods that both writers of sacct's JSON have."""

    def accounted(self, row: AccountingJob) -> Json: ...
    def write(self, kind: str, what: list[Json], accounting: bool = False) -> str: ...
    def write_yaml(self, kind: str, what: list[Json], accounting: bool = False) -> str: ...


def sacct_writer(controller: Controller) -> SacctJson:
    newer = controller.settings.release.json_numbers_are_objects
    return NewerSacctJsonWriter(controller) if newer else SacctJsonWriter(controller)


class SacctJsonWriter(JsonWriter):
    def accounted(self, row: AccountingJob) -> Json:
        user, now = self.controller.user, self.controller.clock()
        cluster = self.controller.shape.name
        elapsed = 0 if row.start is None else (now if row.end is None else row.end) - row.start
        return {
            "account": row.account,
            "comment": {"administrator": None, "job": None, "system": None},
            "allocation_nodes": len(row.nodes),
            "array": {
                "job_id": row.array_id or 0,
                "limits": {"max": {"running": {"tasks": 0}}},
                "task_id": self.number(row.index),
            },
            "association": {"account": row.account, "cluster": cluster, "partition": None, "user": user.name},
            "cluster": cluster,
            "constraints": "",
            "container": None,
            "derived_exit_code": self._accounted_exit(row.derived),
            "time": {
                "elapsed": int(elapsed),
                "eligible": int(row.eligible or 0),
                "end": int(row.end or 0),
                "start": int(row.start or 0),
                "submission": int(row.submit),
                "suspended": 0,
                "system": _seconds(0),  # 0, because only steps have CPU times
                "limit": self.limit(None if row.minutes == OF_PARTITION else row.minutes),
                "total": _seconds(0),
                "user": _seconds(0),
            },
            "exit_code": self._accounted_exit(row.status),
            "flags": [],
            "group": user.group,
            "het": {"job_id": row.het_id or 0, "job_offset": self.number(row.het_offset if row.het_id else None)},
            "job_id": row.job,
            "name": row.name,
            "nodes": compress(row.nodes) or "None assigned",
            "partition": row.partition,
            "priority": row.priority,
            "qos": row.qos,
            "required": {"CPUs": row.asked_cpus, "memory": 0},
            "kill_request_user": user.name if row.cancelled_by is not None else None,
            "reservation": {"id": 0, "name": 0},
            "state": {"current": row.state, "reason": row.reason},
            "steps": [self._step(row, step, now) for step in row.steps],
            "tres": {
                "allocated": _tres(row.cpus, None, len(row.nodes)) if row.nodes else [],
                "requested": _tres(row.asked_cpus, row.asked_mem, row.asked_nodes),
            },
            "user": user.name,
            "wckey": {"wckey": "", "flags": []},
            "working_directory": row.folder,
        }

    def _accounted_exit(self, status: int) -> Json:
        code, number = status >> 8, status & 0x7F
        if number:
            return {"status": "SIGNALED", "return_code": code, "signal": {"signal_id": number}}
        return {"status": "ERROR" if code else "SUCCESS", "return_code": code}

    def _step(self, row: AccountingJob, step: AccountingStep, now: float) -> Json:
        return {
            "nodes": {"list": list(step.nodes), "count": len(step.nodes), "range": compress(step.nodes)},
            "time": {
                "elapsed": int((now if step.end is None else step.end) - step.start),
                "end": int(step.end or 0),
                "start": int(step.start),
                "suspended": 0,
                "system": _seconds(step.usage.system_s if step.usage else 0),
                "total": _seconds(step.usage.cpu_s if step.usage else 0),
                "user": _seconds(step.usage.user_s if step.usage else 0),
            },
            "exit_code": self._accounted_exit(step.status),
            "tasks": {"count": step.tasks},
            "state": step.state,
            "step": {
                "job_id": row.job,
                "het": {"component": None},
                "id": int(step.id) if step.id.isdigit() else step.id,
                "name": step.name,
            },
            "tres": {"allocated": _tres(step.cpus, 0, len(step.nodes))},
        }


class NewerSacctJsonWriter(NewerJsonWriter):
    """sacct's JSON from 23.11 on."""

    def accounted(self, row: AccountingJob) -> Json:
        older, now = SacctJsonWriter(self.controller).accounted(row), self.controller.clock()
        asked, begun = older["required"], row.start if row.start is not None else now
        waited = max(begun - row.eligible, 0) if row.eligible else 0
        steps = [each.usage for each in row.steps if each.usage]
        used = [sum(each.user_s for each in steps), sum(each.system_s for each in steps)]
        newer = {
            "array": {**older["array"], "task_id": self.number(row.index), "task": ""},
            "association": {**older["association"], "partition": "", "id": 2},
            "derived_exit_code": self.exit(row.derived),
            "exit_code": self.exit(row.status),
            "het": {**older["het"], "job_offset": self.number(row.het_offset if row.het_id else None)},
            "hold": False,
            "kill_request_user": older["kill_request_user"] or "",
            "priority": self.number(row.priority),
            "required": {
                "CPUs": asked["CPUs"],
                "memory_per_cpu": self.number(None),
                "memory_per_node": self.number(0),
            },
            "restart_cnt": row.restarts,
            **dict.fromkeys(defaults.PATHS.split(), ""),
            "state": {"current": [row.state], "reason": row.reason},
            "steps": [self._step(row, step, now) for step in row.steps],
            "submit_line": row.submit_line,
            "time": {
                **older["time"],
                "limit": self.number(row.minutes),
                "planned": self.number(waited),
                **dict(zip(("user", "system", "total"), map(_seconds, (*used, sum(used))), strict=True)),
            },
            "tres": {
                "allocated": _newer_tres(row.cpus, None, len(row.nodes)) if row.nodes else [],
                "requested": _newer_tres(row.asked_cpus, row.asked_mem, row.asked_nodes),
            },
        }
        found = {**older, **defaults.ACCOUNTED, **newer}
        if not self.release.json_of_26_05:
            return found
        found["reservation"] = {**found["reservation"], "requested": ""}
        return defaults.as_26_05("accounted", found, sluid="", original_sluid="")

    def _step(self, row: AccountingJob, step: AccountingStep, now: float) -> Json:
        found = self._step_of_24_11(row, step, now)
        if not self.release.json_of_26_05:
            return found
        found["time"]["limit"] = number(None, infinite=True)
        found["step"] |= dict.fromkeys(defaults.PATHS.split(), "")
        return defaults.as_26_05("step", found, submit_line=step.submit_line)

    def _step_of_24_11(self, row: AccountingJob, step: AccountingStep, now: float) -> Json:
        used = step.usage
        user_s, system_s = (used.user_s, used.system_s) if used else (0, 0)
        return {
            **defaults.STEP,
            "time": {
                "elapsed": int((now if step.end is None else step.end) - step.start),
                "end": self.moment(step.end),
                "start": self.moment(step.start),
                "suspended": 0,
                "system": _seconds(system_s),
                "total": _seconds(user_s + system_s),
                "user": _seconds(user_s),
            },
            "exit_code": self.exit(step.status),
            "nodes": {"count": len(step.nodes), "range": compress(step.nodes), "list": list(step.nodes)},
            "tasks": {"count": step.tasks},
            "kill_request_user": "",
            "state": [step.state],
            "step": {"id": f"{row.job}.{step.id}", "name": step.name},
            "task": {"distribution": "Unknown" if step.batch else "Block"},
            "tres": {
                "requested": defaults.USAGE,
                "consumed": defaults.USAGE,
                "allocated": _newer_tres(step.cpus, 0, len(step.nodes))[:3],
            },
        }


def _newer_tres(cpus: int, memory: int | None, nodes: int) -> list[Json]:
    found = [each | {"name": ""} for each in _tres(cpus, memory, nodes)]
    return [*found, {"type": "billing", "name": "", "id": 5, "count": cpus}]


def _seconds(used_s: float) -> Json:
    return {"seconds": int(used_s), "microseconds": int(used_s * 1_000_000) % 1_000_000}


def _tres(cpus: int, memory: int | None, nodes: int) -> list[Json]:
    counts = {"cpu": (1, cpus), "mem": (2, memory), "node": (4, nodes)}
    return [
        {"type": kind, "name": None, "id": number, "count": n} for kind, (number, n) in counts.items() if n is not None
    ]
