"""break_node.py FOLDER fail|restore NODE: for the scenario node-fail, which asks whoever has a cluster for this."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from clusterdp.fakeslurm import FakeCluster

folder, verb, node = sys.argv[1:]
cluster = FakeCluster.attach(Path(folder))
if verb == "fail":
    cluster.fail(node)
else:
    cluster.resume(node)
