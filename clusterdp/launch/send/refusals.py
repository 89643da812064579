"""with_key: sbatch's refusal, with the key of the config that it means."""

from __future__ import annotations

import re

from clusterdp.config import Config
from clusterdp.errors import SubmitError

# What sbatch prints -> the keys that it may mean: the first of them that is given, or the first.
REFUSALS = {
    "group not permitted to use this partition|partition name|invalid partition|system default partition": "partition",
    "account or account/partition": "account partition",
    "qos specification|permitted to use.*qos": "qos",
    "requested time limit": "time",
    "feature specification": "constraint",
    r"generic resource|\bgres\b": "gpus_per_node gpus_per_task gres",
    "node name": "nodelist exclude",
    "reservation": "reservation",
    "memory specification": "mem",
    "cpu count|processors requested": "cpus_per_task",
    "node count": "nodes",
}
CHECK = "`clusterdp check` names what is allowed"


def with_key(error: SubmitError, config: Config) -> SubmitError:
    """sbatch names an option, or what is wrong with a value; what stands in the config is its key. Which options it
    knows, it alone can say."""
    said = str(error)
    for option, value in config.resources.extra.items():
        if re.search(rf"--{re.escape(option)}(?![\w-])", said):
            key = f"resources.extra.{option}: {value!r}"
            return SubmitError(f"{key} is refused by sbatch. Correct it or leave it out. {error}")
    for pattern, keys in REFUSALS.items():
        if re.search(pattern, said, re.IGNORECASE):
            names = keys.split()
            name = next((name for name in names if getattr(config.resources, name) is not None), names[0])
            value = getattr(config.resources, name)
            what = f"{value!r} is refused by sbatch" if value is not None else "is not given, and sbatch refuses that"
            return SubmitError(f"resources.{name}: {what}. Correct it: {CHECK}. {error}")
    if "node configuration" in said:
        return SubmitError(f"resources: no node of the partition has all that is asked for. {CHECK}. {error}")
    if re.search("accounting/QOS policy|submit limit", said):
        return SubmitError(f"resources: more is asked for than account or QOS allow. {CHECK}. {error}")
    return error
