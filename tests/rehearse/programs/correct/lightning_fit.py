"""Lightning on two ranks, with its own checkpoints every few steps; a callback saves at SIGTERM."""

import os
import signal
import sys
import time
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch, index):
        """Its samples follow from the step: after a resume in mid-epoch, Lightning begins the loader anew."""
        seed = self.global_step * self.trainer.world_size + self.global_rank
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
        return torch.nn.functional.mse_loss(self.layers(x), x.sum(1, keepdim=True))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class StopAtSigterm(Callback):
    def on_train_start(self, trainer, module):
        self.asked = torch.zeros(1)
        signal.signal(signal.SIGTERM, lambda *_: self.asked.fill_(1))

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        time.sleep(0.05)
        print(f"step {trainer.global_step}", flush=True)
        told = self.asked.clone()
        torch.distributed.all_reduce(told)
        if told.item():
            trainer.save_checkpoint("ckpt/asked.tmp")
            if trainer.is_global_zero:
                os.replace("ckpt/asked.tmp", "ckpt/last.ckpt")
            trainer.strategy.barrier()
            os._exit(75)


class Environment(LightningEnvironment):
    """The ranks are there already, with the names of torchrun."""

    creates_processes_externally = True
    world_size = lambda self: int(os.environ["WORLD_SIZE"])  # noqa: E731
    global_rank = lambda self: int(os.environ["RANK"])  # noqa: E731
    local_rank = lambda self: int(os.environ["LOCAL_RANK"])  # noqa: E731


class Atomic(ModelCheckpoint):
    """One file, replaced when the next one is whole."""

    def _save_checkpoint(self, trainer, filepath):
        trainer.save_checkpoint("ckpt/next.tmp")
        if trainer.is_global_zero:
            os.replace("ckpt/next.tmp", "ckpt/last.ckpt")
        trainer.strategy.barrier()


def main():
    pl.seed_everything(1)
    save = Atomic(dirpath="ckpt", every_n_train_steps=10, save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        plugins=[Environment()],
        max_steps=80,
        callbacks=[StopAtSigterm(), save],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    os.makedirs("ckpt", exist_ok=True)
    last = "ckpt/last.ckpt" if os.path.exists("ckpt/last.ckpt") else None
    net = Net()
    trainer.fit(net, DataLoader(range(1000)), ckpt_path=last, weights_only=False)
    if trainer.is_global_zero:
        torch.save(net.state_dict(), "final.pt")


if __name__ == "__main__":
    sys.exit(main())
