"""A Slurm in a folder: the very same sbatch scripts run on it as on a real Slurm, on a laptop and in CI."""

from .cluster import FakeCluster
from .errors import FakeSlurmError
from .shape import NodeShape, PartitionShape, Settings, Shape

__all__ = ["FakeCluster", "FakeSlurmError", "NodeShape", "PartitionShape", "Settings", "Shape"]
