"""Saves are made by a daemon thread, which dies with the interpreter before the last one is written."""

import os
import queue
import signal
import sys
import threading
import time

import torch


class BackgroundSaver(threading.Thread):
    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.jobs = path, queue.Queue()
        self.start()

    def run(self):
        while True:
            state = self.jobs.get()
            with open(self.path + ".tmp", "wb") as file:
                torch.save(state, file)
                file.flush()
                time.sleep(0.3)  # a slow disk
                os.fsync(file.fileno())
            os.replace(self.path + ".tmp", self.path)

    def submit(self, state):
        self.jobs.put({key: value.clone() if hasattr(value, "clone") else value for key, value in state.items()})


def main():
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    saver = BackgroundSaver("params.pt")
    params, step = torch.zeros(1000), 0
    if os.path.exists("params.pt"):
        state = torch.load("params.pt")
        params, step = state["params"], state["step"]
    while step < 60:
        target = torch.randn(1000, generator=torch.Generator().manual_seed(step))
        params += 0.1 * (target - params)
        step += 1
        time.sleep(0.08)
        print(f"step {step} |params| {params.norm():.3f}", flush=True)
        if step % 10 == 0 or end.is_set():
            saver.submit({"params": params, "step": step})
        if end.is_set():
            sys.exit(75)
    time.sleep(1)  # for the last one


main()
