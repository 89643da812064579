"""Rules: decisions of the config for the job, which submit has written to batch/rules.json."""

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional

from .texts import native


class Policy(NamedTuple):
    """The policy for one cause. limit: how often the run continues after this cause; None: always. wait_s: minimum
    seconds until the next attempt begins, doubled for each end of this cause in a row. avoid: whether later attempts
    avoid the node."""

    limit: Optional[int] = None
    wait_s: int = 0
    avoid: bool = False


class Rules(NamedTuple):
    """Fields that are also in the config have the names of the config's keys."""

    kind: str = "command"
    nodes: int = 1  # nodes of the ranks, in this attempt
    sizes: List[int] = []  # the numbers of nodes that other attempts may have, in order; empty: `nodes`
    grow_after_s: Optional[float] = None
    spare_nodes: int = 0  # nodes that the job has besides
    tasks_per_node: int = 1  # tasks of srun on each node of the ranks
    exclude: str = ""  # resources.exclude as written in the config
    nodelist: str = ""  # resources.nodelist as written in the config
    requeue: bool = True
    in_place: bool = False  # whether the job itself starts its step again after a fault; not under submitit
    warm_after_s: Optional[float] = None  # seconds until ranks for the next attempt wait; None: they do not
    fork_server: bool = False  # whether the ranks of a node are forked from one process (train/process/fork_server.py)
    no_kill: bool = False  # whether the job outlives the loss of its nodes, and so of the script
    copies: bool = False  # whether a keeper on each node holds copies of the state in memory
    keeps_local: bool = False  # whether checkpoints are committed in the run folder, and then copied to checkpoint_url
    warned_s: int = 0  # seconds before the time limit in which Slurm may have sent a warning; 0: no warning
    how: str = "requeue"
    chain: int = 0
    max_crashes: int = 0
    max_no_progress: int = 3
    max_attempts: Optional[int] = None
    max_hours: Optional[float] = None
    policies: Dict[str, Policy] = {}
    checkpoint_url: str = ""  # empty: the run folder's `checkpoints`
    from_step: Optional[int] = None  # step of the checkpoint to resume from, until the run has its own checkpoint
    silence_s: int = 0
    on_hang: str = "report"
    preflight: List[str] = []  # the command of the preflight's step; empty: no preflight
    notify: List[str] = []
    webhook_file: str = ""
    notify_command: List[str] = []
    name: str = "job"
    after: List[Dict[str, str]] = []  # the runs that this run follows: folder `run`, and the `state` to wait for
    environment: bool = False  # whether each node has an environment of the job's own (launch.environment)
    is_sweep: bool = False  # whether each array element has its own folder of checkpoints below checkpoint_url

    @property
    def may_lose_nodes(self) -> bool:
        """Whether the ranks start again in the job without nodes that it has lost: on spare ones, or on fewer."""
        return self.spare_nodes > 0 or (self.in_place and bool(self.sizes))

    @property
    def job_nodes(self) -> int:
        """The least number of nodes that the job needs."""
        return (self.sizes or [self.nodes])[0] + self.spare_nodes

    def policy(self, cause: str) -> Policy:
        return self.policies.get(cause, Policy())


def read_rules(folder: str) -> Rules:
    """Reads the rules. Raises OSError or ValueError if the file cannot be read. Ignores keys of a later version."""
    with open(os.path.join(folder, "rules.json"), encoding="utf-8") as file:
        values = _natives(json.load(file))
    policies = {cause: Policy(**_known(Policy, policy)) for cause, policy in values.pop("policies", {}).items()}
    return Rules(policies=policies, **_known(Rules, values))


def _known(kind: Any, values: Dict[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in values.items() if key in kind._fields}


def _natives(value: Any) -> Any:
    if isinstance(value, str):
        return native(value)
    if isinstance(value, list):
        return [_natives(each) for each in value]
    if isinstance(value, dict):
        return {native(key): _natives(each) for key, each in value.items()}
    return value
