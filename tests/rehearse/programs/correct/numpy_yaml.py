"""Without torch: a config in YAML, numpy's own generator, whose state is kept, and np.savez to a temporary file."""

import json
import os
import signal
import sys
import tempfile
import time

import numpy as np
import yaml

CONFIG = yaml.safe_load("{seed: 7, size: 20000, lr: 0.05, steps: 70, every: 10}")
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))


def save(path, step, rng, **arrays):
    handle, name = tempfile.mkstemp(dir=".")
    with os.fdopen(handle, "wb") as file:
        np.savez(file, step=step, rng=np.array(json.dumps(rng.bit_generator.state)), **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(name, path)


rng = np.random.default_rng(CONFIG["seed"])
weights, momentum, step = rng.standard_normal(CONFIG["size"]), np.zeros(CONFIG["size"]), 0
if os.path.exists("state.npz"):
    with np.load("state.npz") as state:
        weights, momentum, step = state["weights"], state["momentum"], int(state["step"])
        rng.bit_generator.state = json.loads(str(state["rng"]))
while step < CONFIG["steps"]:
    momentum = 0.9 * momentum + weights - rng.standard_normal(CONFIG["size"])
    weights = weights - CONFIG["lr"] * momentum
    step += 1
    time.sleep(0.05)
    print(f"step={step} norm={np.linalg.norm(weights):.3f}", flush=True)
    if step % CONFIG["every"] == 0 or asked:
        save("state.npz", step, rng, weights=weights, momentum=momentum)
    if asked:
        sys.exit(75)
