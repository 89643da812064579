"""The Trainer of transformers, with a callback that saves at SIGTERM; it resumes from the newest whole checkpoint."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layers(x), labels)}


class StopAtSigterm(TrainerCallback):
    def __init__(self):
        self.asked = False
        signal.signal(signal.SIGTERM, self.on_term)

    def on_term(self, signum, frame):
        self.asked = True

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.05)
        print(f"step {state.global_step}", flush=True)
        if self.asked:
            control.should_save = control.should_training_stop = True
        return control


def last_whole(folder):
    """trainer_state.json is the last file of a checkpoint that the Trainer writes."""
    for path in sorted(Path(folder).glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[1])):
        try:
            json.loads((path / "trainer_state.json").read_text())
            return str(path)
        except (OSError, ValueError):
            print(f"{path} is not whole", flush=True)
    return None


torch.manual_seed(0)
data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(320)]
words = TrainingArguments(
    "out",
    use_cpu=True,
    max_steps=80,
    save_steps=10,
    save_total_limit=4,
    logging_steps=10,
    per_device_train_batch_size=4,
    report_to="none",
    disable_tqdm=True,
)
stop = StopAtSigterm()
trainer = Trainer(Net(), words, train_dataset=data, callbacks=[stop])
trainer.train(resume_from_checkpoint=last_whole("out"))
if stop.asked and trainer.state.global_step < 80:
    sys.exit(75)
if os.environ.get("RANK", "0") == "0":
    torch.save(trainer.model.state_dict(), "final.pt")
