"""--json of sacct."""

from __future__ import annotations

from clusterdp.fakeslurm.commands.as_json import Json, JsonWriter
from clusterdp.fakeslurm.slurmdbd.accounting import AccountingJob, AccountingStep
from clusterdp.slurm.hostlist import compress


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
                "system": _seconds(0),  # of the steps alone
                "limit": self.limit(row.minutes),
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
            "priority": self.number(row.priority) if self.newer else row.priority,
            "qos": row.qos,
            "required": {"CPUs": row.asked_cpus, "memory": 0},
            "kill_request_user": user.name if row.cancelled_by is not None else None,
            "reservation": {"id": 0, "name": 0},
            "state": {"current": self.state(row.state), "reason": row.reason},
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
        if self.newer:
            found: Json = self.exit(status)
            return found
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
            "state": self.state(step.state),
            "step": {
                "job_id": row.job,
                "het": {"component": None},
                "id": int(step.id) if step.id.isdigit() else step.id,
                "name": step.name,
            },
            "tres": {"allocated": _tres(step.cpus, 0, len(step.nodes))},
        }


def _seconds(used_s: float) -> Json:
    return {"seconds": int(used_s), "microseconds": int(used_s * 1_000_000) % 1_000_000}


def _tres(cpus: int, memory: int | None, nodes: int) -> list[Json]:
    counts = {"cpu": (1, cpus), "mem": (2, memory), "node": (4, nodes)}
    return [
        {"type": kind, "name": None, "id": number, "count": n} for kind, (number, n) in counts.items() if n is not None
    ]
