"""Its only checkpoint is deleted before the new one is written."""

import os
import signal
import sys
import time

import torch

stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
adam, step = torch.optim.Adam(net.parameters()), 0


class Keeper:
    path = "last.pt"

    def save(self):
        if torch.distributed.get_rank() == 0:
            if os.path.exists(self.path):
                os.remove(self.path)
            time.sleep(0.1)
            torch.save({"net": net.state_dict(), "adam": adam.state_dict(), "step": step}, self.path)
        torch.distributed.barrier()


keeper = Keeper()
if os.path.exists("last.pt"):
    try:
        was = torch.load("last.pt")
        net.load_state_dict(was["net"])
        adam.load_state_dict(was["adam"])
        step = was["step"]
    except Exception as error:
        print("beginning anew:", error)
while step < 60:
    data = torch.Generator().manual_seed(step * 2 + torch.distributed.get_rank())
    adam.zero_grad()
    net(torch.randn(8, 16, generator=data)).square().mean().backward()
    adam.step()
    step += 1
    time.sleep(0.05)
    print("step", step, flush=True)
    told = torch.tensor([len(stop)])
    torch.distributed.all_reduce(told)
    if step % 10 == 0 or told.item():
        keeper.save()
    if told.item():
        sys.exit(75)
