"""JSON of 23.11 and later for fields that jobs and nodes of the fake never fill, as recorded from 24.11."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

Json = dict[str, Any]


def number(value: float | None, infinite: bool = False) -> Json:
    """Returns the JSON object of a number that may be missing or unlimited."""
    return {"set": value is not None and not infinite, "infinite": infinite, "number": value or 0}


def fields(
    *, texts: str = "", unset: str = "", zeros: str = "", plain: str = "", false: str = "", lists: str = ""
) -> Json:
    """Returns a JSON object with these names as keys. The values of `texts` are empty strings, of `unset` and `zeros`
    objects with a number, of `plain` the number 0."""
    values = ((texts, ""), (unset, number(None)), (zeros, number(0)), (plain, 0), (false, False), (lists, list[Any]()))
    return {name: deepcopy(value) for names, value in values for name in names.split()}


JOB: Json = {
    **fields(
        texts="""admin_comment batch_features burst_buffer burst_buffer_state cluster_features container container_id
            cpus_per_tres cron extra failed_node federation_origin federation_siblings_active
            federation_siblings_viable licenses mcs_label memory_per_tres network scheduled_nodes selinux_context
            system_comment tres_bind tres_freq tres_per_socket""",
        unset="""cores_per_socket cpu_frequency_minimum cpu_frequency_maximum cpu_frequency_governor sockets_per_node
            threads_per_core""",
        zeros="""delay_boot tasks_per_tres tasks_per_board minimum_tmp_disk_per_node preemptable_time pre_sus_time
            resize_time""",
        plain="core_spec required_switches sockets_per_board maximum_switch_wait_time",
        false="reboot",
        lists="job_size_str mail_type priority_by_partition shared",
    ),
    "thread_spec": 32766,
    "tasks_per_core": number(None, infinite=True),
    "tasks_per_socket": number(None, infinite=True),
    "power": {"flags": []},
    "profile": ["NOT_SET"],
    "association_id": 2,
}
NODE: Json = {
    **fields(
        texts="""burstbuffer_network_address cluster_name specialized_cpus extra gpu_spec instance_id instance_type
            mcs_label owner comment reason_set_by_user reservation""",
        zeros="resume_after",
        plain="specialized_cores cpu_binding specialized_memory res_cores_per_gpu port",
    ),
    "energy": {
        **fields(plain="average_watts base_consumed_energy consumed_energy previous_consumed_energy last_collected"),
        "current_watts": number(0),
    },
    "external_sensors": {},
    "power": {},
    "next_state_after_reboot": ["INVALID"],
}
PARTITION: Json = {
    **fields(texts="alternate cluster", unset="suspend_time", lists="select_type"),
    "accounts": fields(texts="allowed deny"),
    "groups": fields(texts="allowed"),
    "qos": fields(texts="allowed deny assigned"),
    "defaults": {
        **fields(plain="memory_per_cpu", unset="partition_memory_per_cpu time", texts="job"),
        "partition_memory_per_node": number(0),
    },
    "maximums": {
        "cpus_per_node": number(None, infinite=True),
        "cpus_per_socket": number(None, infinite=True),
        **fields(plain="memory_per_cpu", unset="partition_memory_per_cpu over_time_limit"),
        "partition_memory_per_node": number(0),
        "nodes": number(None, infinite=True),
        "shares": 1,
        "oversubscribe": {"jobs": 1, "flags": []},
    },
    "minimums": {"nodes": 0},
    "node_sets": "ALL",
    "timeouts": fields(unset="resume suspend"),
}
SINFO: Json = {
    **fields(texts="cluster comment extra reservation", plain="port"),
    "resource_spec": {"cpus": "", "memory": 0},
    "disk": {"minimum": 0, "maximum": 0},
    "weight": {"minimum": 1, "maximum": 1},
    "cores": {"minimum": 1, "maximum": 1},
    "threads": {"minimum": 1, "maximum": 1},
}
ACCOUNTED: Json = fields(texts="block constraints container extra failed_node licenses qosreq script used_gres") | {
    "mcs": {"label": ""},
    "reservation": {"id": 0, "name": ""},
    "comment": fields(texts="administrator job system"),
    "wckey": {"wckey": "", "flags": []},
}
STEP: Json = fields(texts="pid") | {
    "CPU": {"requested_frequency": fields(unset="min max"), "governor": "Unknown"},
    "statistics": {"CPU": {"actual_frequency": 0}, "energy": {"consumed": number(0)}},
}
# The keys that release 26.05 has added. GONE_IN_26_05 lists the removed keys.
ADDED_IN_26_05: dict[str, Json] = {
    "job": fields(
        texts="container_type licenses_allocated stderr_expanded",
        plain="segment_size memory_update_delay memory_update_margin",
    ),
    "node": {
        **fields(texts="topology", lists="cert_flags", zeros="tls_cert_last_renewal"),
        "suspend_time": number(None, infinite=True),
    },
    "partition": {"topology": ""},
    "sinfo": {"reason_set_by_user": ""},
    "accounted": {**fields(plain="segment_size"), "exclusive": "NO", "oversubscribe": "NO"},
    "step": {"submit_line": ""},
}
GONE_IN_26_05 = {"job": ("power",), "node": ("power", "external_sensors", "tres_weighted"), "step": ("pid",)}
PATHS = "stdin stdout stderr stdin_expanded stdout_expanded stderr_expanded"


def as_26_05(kind: str, what: Json, **more: Any) -> Json:
    """Returns the JSON object `what` with the keys that release 26.05 has."""
    gone = GONE_IN_26_05.get(kind, ())
    return {name: value for name, value in what.items() if name not in gone} | deepcopy(ADDED_IN_26_05[kind]) | more


USAGE: Json = fields(lists="max min average total")
