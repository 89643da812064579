"""Lists of numbers, as Slurm writes them."""


def ranges(numbers: list[int]) -> str:
    """0-3,7 for sorted numbers."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def counts(numbers: list[int]) -> str:
    """2,1(x3): one number for each node, repetitions drawn together."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][0] == number:
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return ",".join(str(number) if times == 1 else f"{number}(x{times})" for number, times in found)
