"""Reads a text as numbers, one for each character, and divides the text into windows. The default is Python's own
manual, which comes with every Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.data import Dataset

from clusterdp.errors import ConfigError

HELD_OUT = 0.1  # share of the text that is held out, at its end
SHORTEST = 4


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
