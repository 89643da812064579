"""A store of many small files, as zarr lays one out; a folder of a temporary name gets its own when all are there."""

import json
import os
import shutil
import signal
import sys
import time

import numpy as np

CHUNK = 4096
flag = {"stop": False}


def on_term(signum, frame):
    flag["stop"] = True


def write_array(folder, name, array):
    os.makedirs(f"{folder}/{name}/c")
    meta = {"shape": list(array.shape), "data_type": str(array.dtype), "chunk": CHUNK}
    with open(f"{folder}/{name}/zarr.json", "w") as file:
        json.dump(meta, file)
    for i in range(0, array.size, CHUNK):
        array[i : i + CHUNK].tofile(f"{folder}/{name}/c/{i // CHUNK}")


def read_array(folder, name):
    with open(f"{folder}/{name}/zarr.json") as file:
        meta = json.load(file)
    count = len(os.listdir(f"{folder}/{name}/c"))
    parts = [np.fromfile(f"{folder}/{name}/c/{i}", meta["data_type"]) for i in range(count)]
    return np.concatenate(parts)


def save(step, **arrays):
    folder = f"store/step_{step:06d}"
    shutil.rmtree(f"{folder}.partial", ignore_errors=True)
    for name, array in arrays.items():
        write_array(f"{folder}.partial", name, array)
    os.rename(f"{folder}.partial", folder)
    for old in sorted(name for name in os.listdir("store") if "." not in name)[:-2]:
        shutil.rmtree(f"store/{old}")


signal.signal(signal.SIGTERM, on_term)
os.makedirs("store", exist_ok=True)
weights, momentum, step = np.ones(40_000), np.zeros(40_000), 0
found = sorted(name for name in os.listdir("store") if "." not in name)
if found:
    step = int(found[-1].split("_")[1])
    weights, momentum = read_array(f"store/{found[-1]}", "weights"), read_array(f"store/{found[-1]}", "momentum")
while step < 70:
    gradient = weights - np.random.default_rng(step).standard_normal(40_000)
    momentum = 0.9 * momentum + gradient
    weights = weights - 0.01 * momentum
    step += 1
    time.sleep(0.05)
    print("step", step, flush=True)
    if step % 10 == 0 or flag["stop"]:
        save(step, weights=weights, momentum=momentum)
    if flag["stop"]:
        sys.exit(75)
np.save("weights.npy", weights)
