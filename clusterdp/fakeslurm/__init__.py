"""A Slurm in a folder: the very same sbatch scripts run on it as on a real Slurm, on a laptop and in CI."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterdp.fakeslurm.cluster import FakeCluster
    from clusterdp.fakeslurm.core.shape import NodeShape, PartitionShape, Shape, SlurmConf
    from clusterdp.fakeslurm.errors import FakeSlurmError

__all__ = ["FakeCluster", "FakeSlurmError", "NodeShape", "PartitionShape", "Shape", "SlurmConf"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: the daemon, which must start at once, needs no FakeCluster."""
    from importlib import import_module

    homes = {"FakeCluster": ".cluster", "FakeSlurmError": ".errors"}
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(homes.get(name, ".core.shape"), __name__), name)
