"""At SIGTERM it saves, and asks Slurm itself to requeue the job, as Lightning and many hand-written scripts do."""

import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist


class Preemption:
    def __init__(self):
        self.flag = torch.zeros(1)
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, signum, frame):
        self.flag.fill_(1)

    def agreed(self):
        told = self.flag.clone()
        dist.all_reduce(told)
        return bool(told.item())


def requeue():
    if dist.get_rank() == 0:
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
    sys.exit(0)


def main():
    preemption = Preemption()
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(128, 128))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    step = 0
    if os.path.exists("state.pt"):
        state = torch.load("state.pt")
        net.load_state_dict(state["net"])
        sgd.load_state_dict(state["sgd"])
        step = state["step"]
    while step < 70:
        x = torch.randn(8, 128, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        sgd.zero_grad()
        (net(x) - x).square().mean().backward()
        sgd.step()
        step += 1
        time.sleep(0.05)
        print(f"step {step}", flush=True)
        stop = preemption.agreed()
        if stop or step % 10 == 0:
            if dist.get_rank() == 0:
                torch.save({"net": net.state_dict(), "sgd": sgd.state_dict(), "step": step}, "state.tmp")
                os.replace("state.tmp", "state.pt")
            dist.barrier()
        if stop:
            requeue()


main()
