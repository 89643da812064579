"""Changes of a node's state: the node is drained, is set DOWN, fails, or comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import node_folders
from ..core.error_texts import ControllerError
from ..core.model import BATCH
from ..core.orders import FailNode, OutliveSrun
from ..core.paths import Paths
from . import requeue

if TYPE_CHECKING:
    from .controller import Controller


def set_node(controller: Controller, name: str, state: str, reason: str) -> None:
    """Changes a node, like `scontrol update NodeName=... State=...`. Raises ControllerError."""
    node, now = controller.model.nodes[name], controller.clock()
    if reason:
        node.reason, node.reason_time = reason, now
    if state in ("DOWN", "FAIL"):
        node.down = True
        node.returns_at = now + controller.settings.node_return_s if node.responding else None
    elif state == "DRAIN":
        node.drain = True
    elif state in ("RESUME", "UNDRAIN", "IDLE"):
        if not node.down and not node.drain:
            raise ControllerError(controller.settings.release.resume_of_well_node)
        node.drain = False
        if state != "UNDRAIN":
            node.down = not node.responding
            node.returns_at = None
        if not node.down:
            node.reason = ""
    elif state:
        raise ControllerError("Invalid node state specified")
    controller.records.node(name)
    if node.down:
        node_lost(controller, name)
    controller.wake()


def node_lost(controller: Controller, name: str) -> None:
    for job in list(controller.model.holding()):
        if any(share.node == name for share in job.shares):
            requeue.lose_node(controller, job, name)


def fail_node(controller: Controller, name: str) -> None:
    """Kills the processes of a node and deletes its files. The controller notices later that the node is silent."""
    node = controller.model.nodes[name]
    node.fails_at = controller.clock() + controller.settings.node_timeout_s
    controller.records.node(name)
    for job in controller.model.holding():
        for step in sorted(job.steps, key=lambda step: step.id == BATCH):
            if not step.live or step.runs_in:
                continue
            if job.batch_host == name and step.id != BATCH:
                controller.runner.order(job, step, OutliveSrun())  # the step's srun dies with the batch host
            if name in step.nodes:
                controller.runner.order(job, step, FailNode(name))
    node_folders.wipe(Paths(controller.folder), name)


def kill_slurmd(controller: Controller, name: str) -> None:
    """Makes srun fail to launch tasks on a node that the controller considers healthy. Running tasks on the node
    continue."""
    controller.model.nodes[name].slurmd_killed = True
    controller.records.node(name)


def restore_node(controller: Controller, name: str) -> None:
    node = controller.model.nodes[name]
    node.fails_at, node.responding, node.down, node.drain = None, True, False, False
    node.slurmd_killed = False
    node.reason = ""
    controller.records.node(name)
    controller.wake()


def notice_dead_node(controller: Controller, name: str) -> None:
    node = controller.model.nodes[name]
    node.fails_at, node.responding, node.down = None, False, True
    node.reason, node.reason_time = "Not responding", controller.clock()
    controller.records.node(name)
    node_lost(controller, name)
