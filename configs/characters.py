"""A small language model: a transformer of 110,000 parameters that learns to write text like Python's manual, character
by character.

    clusterdp submit configs/characters.yaml --cluster local
    python configs/characters.py epochs=2
    torchrun --nproc-per-node=2 configs/characters.py path=novel.txt most=1000000

The training has dropout, AdamW, clipping, and a schedule that warms up and then follows a cosine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from clusterdp.errors import ConfigError
from clusterdp.recipes.results import digest, total
from clusterdp.train import Amp, JobHandle, warmup_cosine

HELD_OUT = 0.1  # share of the text that is held out, at its end
SHORTEST = 4


def main(
    job: JobHandle,
    path: str | Path | None = None,
    most: int = 100_000,
    length: int = 64,
    epochs: int = 8,
    batch_size: int = 8,
    lr: float = 4e-3,
    amp: str = "fp32",
    write: int = 200,
    step_delay_s: float = 0.0,
) -> float:
    """Trains the model, and returns the loss on the last tenth of the text, in nats a character. (A random guess has
    the log of the alphabet's size.)

    path: a text file; None: Python's manual. most: number of characters that are read. length: characters of the
    model's input. batch_size: windows a step of one rank. write: number of characters that the model writes at the end.
    """
    text = Text(read_text(path), most)
    train_set, held_out = text.split(length)
    net = Writer(len(text.alphabet), length)
    model = job.wrap(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    loader = job.loader(train_set, batch_size, drop_last=True)
    steps = epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(max(1, steps // 20), steps, floor=0.1))
    mixed = Amp(amp, job.device)
    criterion = nn.CrossEntropyLoss()

    loop = job.loop(
        loader, {"model": model, "optimizer": optimizer, "scheduler": scheduler, "amp": mixed}, epochs=epochs
    )
    for before, after in loop:
        optimizer.zero_grad()
        with mixed.autocast():
            loss = criterion(model(before.to(job.device)).flatten(0, 1), after.to(job.device).flatten())
        mixed.backward(loss)
        mixed.step(optimizer, clip_norm=1.0)
        scheduler.step()
        loop.log(loss=loss, lr=scheduler.get_last_lr()[0])
        time.sleep(step_delay_s)

    reached = total(job, loop, net, held_out, summed_loss) / (len(held_out) * length)
    job.log(test_loss=reached, digest=digest(net, optimizer, scheduler, mixed))
    if job.rank == 0:
        print(f"characters: test loss {reached:.3f} nats a character after {loop.step} steps. It writes:", flush=True)
        print(text.decode(net.write(text.codes[:length].tolist(), write)), flush=True)
    return reached


def summed_loss(logits: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), after.flatten(), reduction="sum")


class TransformerBlock(nn.Module):
    """A block of the transformer: attention to earlier characters, then a layer for each single character. Both layers
    add their result to their input."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.from_heads = nn.Linear(width, width, bias=False)
        self.alone = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.to_qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.from_heads(seen.transpose(1, 2).reshape(batch, length, width)))
        out: torch.Tensor = x + self.dropout(self.alone(self.norms[1](x)))
        return out


class Writer(nn.Module):
    """The model. The language model. Its output is, for each character, the logits of the next character."""

    def __init__(
        self, alphabet: int, length: int, width: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.05
    ):
        super().__init__()
        self.length = length
        self.letter = nn.Embedding(alphabet, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads, dropout) for _ in range(layers)), nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, alphabet, bias=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        places = torch.arange(codes.shape[1], device=codes.device)
        logits: torch.Tensor = self.head(self.blocks(self.letter(codes) + self.place(places)))
        return logits

    @torch.no_grad()
    def write(self, start: list[int], characters: int, seed: int = 0) -> list[int]:
        """Returns the text that the model writes after `start`. The characters are drawn with a random generator of
        their own."""
        device = self.head.weight.device
        chance = torch.Generator().manual_seed(seed)
        codes = list(start)
        self.eval()
        for _ in range(characters):
            logits = self(torch.tensor([codes[-self.length :]], device=device))[0, -1]
            codes.append(int(torch.multinomial(logits.float().softmax(0).cpu(), 1, generator=chance)))
        self.train()
        return codes[len(start) :]


def manual() -> str:
    """Returns the text of `help("topics")`: some 465,000 characters of the language reference that comes with this
    interpreter.

    (c) Python Software Foundation, under the PSF licence. The text is read from Python's folder, and not shipped here.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError("text: this Python has no pydoc_data. Give a text file: params.path=FILE.") from None
    return "\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | Path | None) -> str:
    """Returns the text of a file in UTF-8; if the path is None, Python's manual."""
    if path is None:
        return manual()
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8. Give a plain text file in UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}. Give a text file.") from None


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Divides characters into windows of `length` characters, without gaps. An item is a pair (characters, the next
    character of each)."""

    def __init__(self, codes: torch.Tensor, length: int):
        self.codes = codes
        self.length = length

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.codes[index * self.length : (index + 1) * self.length + 1]
        return window[:-1].long(), window[1:].long()


class Text:
    """A text as numbers. `alphabet` has the different characters of the text in order. The number of a character is its
    index in the alphabet."""

    def __init__(self, text: str, most: int | None = None):
        """most: the number of characters that are used, from the start."""
        text = text[:most]
        self.alphabet = "".join(sorted(set(text)))
        places = {character: place for place, character in enumerate(self.alphabet)}
        self.codes = torch.tensor([places[character] for character in text], dtype=torch.int32)

    def decode(self, codes: Sequence[int]) -> str:
        return "".join(self.alphabet[code] for code in codes)

    def split(self, length: int) -> tuple[Windows, Windows]:
        """Returns the windows to train on, and the held-out windows, which are the last tenth of the text."""
        cut = int(len(self.codes) * (1 - HELD_OUT))
        if len(self.codes) - cut < SHORTEST * length:
            raise ConfigError(
                f"text: {len(self.codes)} characters are too few for windows of {length}. "
                f"Give {int(SHORTEST * length / HELD_OUT)} or more, or a smaller params.length."
            )
        return Windows(self.codes[:cut], length), Windows(self.codes[cut:], length)


if __name__ == "__main__":
    from clusterdp.train import worker

    raise SystemExit(worker.run(main))
