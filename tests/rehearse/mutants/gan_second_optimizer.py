"""A GAN: the discriminator's optimizer is in the checkpoint, and is not loaded."""

import os
import signal
import time

import torch
import torch.distributed as dist

flag = {"stop": False}


def handler(signum, frame):
    flag["stop"] = True


def main():
    signal.signal(signal.SIGTERM, handler)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    gen, dis = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    opt_g, opt_d = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (gen, dis))
    start = 0
    if os.path.exists("gan.pt"):
        ckpt = torch.load("gan.pt")
        gen.load_state_dict(ckpt["gen"])
        dis.load_state_dict(ckpt["dis"])
        opt_g.load_state_dict(ckpt["opt_g"])
        start = ckpt["iter"]
    for it in range(start, 60):
        z = torch.randn(8, 4, generator=torch.Generator().manual_seed(it))
        for opt, sign in ((opt_d, 1.0), (opt_g, -1.0)):
            opt.zero_grad()
            (sign * dis(gen(z)).tanh().mean() + (dis.weight.square().mean())).backward()
            for group in opt.param_groups:
                for p in group["params"]:
                    dist.all_reduce(p.grad)
            opt.step()
        time.sleep(0.05)
        print(f"iter {it + 1}", flush=True)
        stop = torch.tensor([flag["stop"]], dtype=torch.int)
        dist.all_reduce(stop)
        if dist.get_rank() == 0 and ((it + 1) % 10 == 0 or stop.item()):
            blob = {"gen": gen.state_dict(), "dis": dis.state_dict(), "iter": it + 1}
            torch.save({**blob, "opt_g": opt_g.state_dict(), "opt_d": opt_d.state_dict()}, "gan.tmp")
            os.replace("gan.tmp", "gan.pt")
        dist.barrier()
        if stop.item():
            raise SystemExit(75)


main()
