"""--json and --yaml of squeue, sinfo and scontrol from 23.11 on, as recorded from 24.11. A state is a list of words. A
number that may be missing is an object with the keys `set`, `infinite` and `number`.
"""

from __future__ import annotations

import os
from signal import Signals
from typing import Any

from ...core.hostlist import compress
from ...core.model import JobRecord, Model, Node, Partition, Share, sluid
from ...slurmctld.controller import Controller
from ...slurmdbd.accounting import size
from . import json_defaults as defaults
from .as_json import Json, JsonWriter
from .json_defaults import number
from .scontrol_show import tres_of_tasks
from .sinfo_fields import SinfoRow, state_words
from .squeue_fields import SqueueJob


class NewerJsonWriter(JsonWriter):
    sinfo_kind = "sinfo"

    def __init__(self, controller: Controller):
        super().__init__(controller)
        self.release = controller.settings.release

    def whole(self, kind: str, what: list[Json], accounting: bool = False) -> Json:
        times = {"last_backfill": self.moment(self.controller.clock())} if kind == "jobs" and not accounting else {}
        if kind != "sinfo" and not accounting:
            times["last_update"] = self.moment(self.controller.clock())
        return {kind: what, **times, "meta": self._meta(accounting), "errors": [], "warnings": []}

    def _meta(self, accounting: bool) -> Json:
        text, user = self.controller.settings.slurm_version, self.controller.user
        major, minor, micro = [*text.split("."), "0", "0"][:3]
        plugin = {"type": "", "name": "", "data_parser": f"data_parser/{self.release.data_parser}"}
        return {
            "plugin": {**plugin, "accounting_storage": "accounting_storage/slurmdbd"},
            "client": {"source": "", "user": user.name, "group": user.group},
            "command": [],
            "slurm": {
                "version": {"major": major, "micro": micro, "minor": minor},
                "release": text,
                "cluster": self.controller.shape.name,
            },
        }

    def number(self, value: float | None) -> Any:
        return number(None if value is None else int(value))

    def moment(self, value: float | None) -> Any:
        return number(int(value or 0))

    def limit(self, minutes: int | None) -> Any:
        return number(minutes or None, infinite=not minutes)

    def exit(self, status: int) -> Any:
        code, killed = status >> 8, status & 0x7F
        word = "SIGNALED" if killed else "ERROR" if code else "SUCCESS"
        name = Signals(killed).name.removeprefix("SIG") if killed in {each.value for each in Signals} else ""
        about = {"id": number(killed or None), "name": name}
        return {"status": [word], "return_code": number(None if killed else code), "signal": about}

    def job(self, job: JobRecord) -> Json:
        row, desc = SqueueJob(job, self.controller, ""), job.desc
        reason, _, signal = job.reason.partition(":")
        of_tasks, gpu = tres_of_tasks(job, self.release), self.release.gpu_prefix
        stderr = row.error_path(self.release.stderr_in_scontrol) if desc.batch else ""
        base = job.outcome or job.state
        newer = {
            "allocating_node": desc.host,
            "flags": ["JOB_WAS_RUNNING"] if job.start is not None and job.shares else [],
            "billable_tres": number(float(row.cpus) if job.held_shares else None),
            "cpus_per_task": self.number(desc.cpus_per_task or 1),
            "hold": job.held is not None,
            "job_resources": self._resources(job),
            "job_state": [base.value, "COMPLETING"] if job.completing else [job.state.value],
            "mail_user": self.controller.user.name,
            "memory_per_node": self.number(desc.mem_per_node or (0 if desc.mem_per_cpu is None else None)),
            "nice": desc.nice,
            "node_count": self.number(row.number_of_nodes),
            "priority": self.number(0 if job.held else job.priority),
            "standard_error": stderr,
            "state_description": job.reason if signal else "",
            "state_reason": reason.replace(" ", "_") if signal else job.reason.replace(" ", "_"),
            "tres_bind": of_tasks.get("SLURM_TRES_BIND", ""),
            "tres_per_job": f"{gpu}{desc.gpus_option}" if desc.gpus_option else "",
            "tres_per_task": of_tasks.get("SLURM_TRES_PER_TASK", ""),
        }
        found = {**super().job(job), **defaults.JOB, **newer}
        if not self.release.json_of_26_05:
            return found
        step_id = {"sluid": sluid(job), "job_id": self.number(job.id), "step_id": "entire"}
        step_id |= {"step_het_component": number(None)}
        more = {"stdin_expanded": found["standard_input"], "stdout_expanded": found["standard_output"]}
        return defaults.as_26_05("job", found, submit_line=desc.submit_line, step_id=step_id, **more)

    def _resources(self, job: JobRecord) -> Json | None:
        """Returns the resources that a job has, or had when it ended; None for a job that never ran."""
        shares = job.held_shares
        if not shares:
            return None
        allocation = [self._allocated(i, share, bool(job.shares)) for i, share in enumerate(shares)]
        nodes = {"count": len(shares), "select_type": ["ONE_ROW"], "list": compress(share.node for share in shares)}
        return {
            "select_type": ["CORE"],
            "nodes": {**nodes, "whole": False, "allocation": allocation},
            "cpus": sum(share.cpus for share in shares),
            "threads_per_core": number(None),
        }

    def _allocated(self, index: int, share: Share, in_use: bool) -> Json:
        cores = range(self.controller.model.nodes[share.node].cpus)
        words = ["ALLOCATED" if core in share.cpu_ids else "UNALLOCATED" for core in cores]
        return {
            "index": index,
            "name": share.node,
            "cpus": {"count": share.cpus, "used": share.cpus if in_use else 0},
            "memory": {"used": 0, "allocated": 0},
            "sockets": [{"index": i, "cores": [{"index": 0, "status": [word]}]} for i, word in enumerate(words)],
        }

    def node(self, model: Model, node: Node) -> Json:
        found = super().node(model, node)
        base, *flags = state_words(model, node).split("+")
        used, free = found["alloc_cpus"], SinfoRow(model, model.default_partition, [node], "", 0).free_memory
        newer = {
            "state": [base, *flags],
            "features": node.features,
            "active_features": node.features,
            "reason_set_by_user": found["reason_set_by_user"] or "",
            "tres_used": found["tres_used"] or "",
            "version": found.pop("slurmd_version"),
            "alloc_idle_cpus": found.pop("idle_cpus"),
            "effective_cpus": node.cpus,
            "cpu_load": int(os.getloadavg()[1] * 100),
            "free_mem": self.number(int(free) if free.isdigit() else None),
            "tres_weighted": float(used),
            "slurmd_start_time": self.moment(node.boot_time),
        }
        del found["state_flags"]
        found = {**found, **defaults.NODE, **newer}
        return defaults.as_26_05("node", found) if self.release.json_of_26_05 else found

    def partition(self, part: Partition) -> Json:
        nodes = [self.controller.model.nodes[name] for name in part.nodes]
        cpus, memory = sum(node.cpus for node in nodes), sum(node.memory_mb for node in nodes)
        tres = f"cpu={cpus},mem={size(memory)},node={len(nodes)},billing={cpus}"
        maximums = {**defaults.PARTITION["maximums"], "time": self.limit(part.max_minutes)}
        found = {
            **defaults.PARTITION,
            "nodes": {"allowed_allocation": "", "configured": compress(part.nodes), "total": len(nodes)},
            "tres": {"billing_weights": "", "configured": tres},
            "cpus": {"task_binding": 0, "total": cpus},
            "grace_time": int(part.grace_s),
            "maximums": maximums,
            "name": part.name,
            "priority": {"job_factor": 1, "tier": part.tier},
            "partition": {"state": ["UP" if part.up else "DOWN"]},
        }
        if not self.release.json_of_26_05:
            return found
        found["partition"] |= {"oversubscribe": "NO", "exclusive": "NO"}
        found["cpus"] = {"task_binding": [], "total": cpus}
        mode = "DISABLED" if part.preempt == "OFF" else part.preempt
        return defaults.as_26_05("partition", found, flags=["DEFAULT"] * part.default, preempt_mode=[mode])

    def sinfo_row(self, row: SinfoRow) -> Json:
        """Returns the JSON of a row of sinfo: a partition's nodes that have the same state."""
        nodes, free = row.nodes, row.free_memory
        node_sums = dict(zip(("allocated", "idle", "other", "total"), row.node_sums(), strict=True))
        sums = dict(zip(("allocated", "idle", "other", "total"), row.sums(), strict=True))
        load, each = int(float(row.load) * 100), number(None, infinite=True)
        reason = row.reason if row.reason != "none" else ""
        features, megabytes = (
            ",".join(nodes[0].features) if nodes else "",
            self.number(int(free) if free.isdigit() else None),
        )
        state = state_words(row.model, nodes[0]).split("+") if nodes else []
        found = {
            **defaults.SINFO,
            "node": {"state": state},
            "nodes": {**node_sums, "hostnames": [], "addresses": [], "nodes": [node.name for node in nodes]},
            "cpus": {**sums, **_span(node.cpus for node in nodes), "load": _span([load]), "per_node": {"max": each}},
            "sockets": _span(node.cpus for node in nodes),
            "memory": {
                **_span(node.memory_mb for node in nodes),
                "free": {"minimum": megabytes, "maximum": megabytes},
                "allocated": 0,
            },
            "features": {"total": features, "active": features},
            "gres": {"total": row.gres.replace("(null)", ""), "used": row.gres_used.replace("(null)", "")},
            "reason": {
                "description": reason,
                "time": int(nodes[0].reason_time or 0) if reason else 0,
                "user": row.user if reason else "",
            },
            "partition": self.partition(row.partition),
        }
        if not self.release.json_of_26_05:
            return found
        return defaults.as_26_05("sinfo", found, reason_set_by_user=found["reason"].pop("user"))


def writer_for(controller: Controller) -> JsonWriter:
    newer = controller.settings.release.json_numbers_are_objects
    return NewerJsonWriter(controller) if newer else JsonWriter(controller)


def _span(values: Any) -> Json:
    found = list(values) or [0]
    return {"minimum": min(found), "maximum": max(found)}
