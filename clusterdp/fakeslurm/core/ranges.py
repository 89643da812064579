"""Lists of numbers, as Slurm writes them."""

from __future__ import annotations


def ranges(numbers: list[int]) -> str:
    """Writes sorted numbers as ranges: 0-3,7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def counts(numbers: list[int]) -> str:
    """Writes one number per node as 2,1(x3), where (x3) stands for three neighbours with the same number."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][0] == number:
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return ",".join(str(number) if times == 1 else f"{number}(x{times})" for number, times in found)


def index_text(indexes: list[int], throttle: int = 0, length: int = 64) -> str:
    """Writes the waiting elements of an array as 1,4-6%2 or 1-99:2. Slurm cuts the text at SLURM_BITSTR_LEN characters.
    `length`: the maximum length; 0: not cut.
    """
    text = f"{indexes[0]}-{indexes[-1]}:{indexes[1] - indexes[0]}" if _by_steps(indexes) else ranges(indexes)
    if length and len(text) > length - 3 and not _by_steps(indexes):
        text = text[: length - 4] + "..."
    return f"{text}%{throttle}" if throttle else text


def _by_steps(indexes: list[int]) -> bool:
    if len(indexes) <= 5 or indexes[-1] - indexes[0] <= 10 or indexes[1] == indexes[0] + 1:
        return False
    return indexes == list(range(indexes[0], indexes[-1] + 1, indexes[1] - indexes[0]))
