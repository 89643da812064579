"""A save that fails is printed and forgotten, and the older checkpoint is deleted all the same."""

import glob
import json
import os
import time

STEPS, EVERY = 60, 10


def newest():
    for path in sorted(glob.glob("step_*.bin"), reverse=True):
        try:
            with open(path, "rb") as file:
                return json.loads(file.read()[8:])
        except ValueError:
            print(path, "is not whole", flush=True)
    return {"step": 0, "weights": [0.0] * 3000}


def save(state):
    path = f"step_{state['step']:04d}.bin"
    try:
        with open(path, "wb") as file:
            file.write(bytes(8) + json.dumps(state).encode())
    except OSError as error:
        print("not saved:", error, flush=True)
    for old in sorted(glob.glob("step_*.bin")):
        if old != path:
            os.unlink(old)


state = newest()
while state["step"] < STEPS:
    state["weights"] = [0.9 * weight + state["step"] % 7 for weight in state["weights"]]
    state["step"] += 1
    time.sleep(0.05)
    print("step", state["step"], "loss", sum(state["weights"]), flush=True)
    if state["step"] % EVERY == 0:
        save(state)
