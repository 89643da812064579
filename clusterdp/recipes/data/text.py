"""Characters: a text as numbers, in windows. By default Python's own manual, which comes with every Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.data import Dataset

from clusterdp.errors import ConfigError

HELD_OUT = 0.1  # of the text, from its end
SHORTEST = 4


def manual() -> str:
    """The text of `help("topics")`: some 465,000 characters of the language reference, in this interpreter's version.

    (c) Python Software Foundation, under the PSF licence; read where Python has it, not shipped here.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError("text: this Python has no pydoc_data. Give a text file: params.path=FILE.") from None
    return "\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | Path | None) -> str:
    """The file's, in UTF-8; with None, the manual's."""
    if path is None:
        return manual()
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8. Give a plain text file in UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}. Give a text file.") from None


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Every `length` characters of a text, end to end: (characters, and the one that follows each)."""

    def __init__(self, codes: torch.Tensor, length: int):
        self.codes = codes
        self.length = length

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.codes[index * self.length : (index + 1) * self.length + 1]
        return window[:-1].long(), window[1:].long()


class Text:
    """`alphabet`: its characters, in order; a character's number is its place there."""

    def __init__(self, text: str, most: int | None = None):
        """most: characters that are read, from the start."""
        text = text[:most]
        self.alphabet = "".join(sorted(set(text)))
        places = {character: place for place, character in enumerate(self.alphabet)}
        self.codes = torch.tensor([places[character] for character in text], dtype=torch.int32)

    def decode(self, codes: Sequence[int]) -> str:
        return "".join(self.alphabet[code] for code in codes)

    def split(self, length: int) -> tuple[Windows, Windows]:
        """Windows to train on, and those of the last tenth, which are held out."""
        cut = int(len(self.codes) * (1 - HELD_OUT))
        if len(self.codes) - cut < SHORTEST * length:
            raise ConfigError(
                f"text: {len(self.codes)} characters are too few for windows of {length}. "
                f"Give {int(SHORTEST * length / HELD_OUT)} or more, or a smaller params.length."
            )
        return Windows(self.codes[:cut], length), Windows(self.codes[cut:], length)
