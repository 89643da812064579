"""The #SBATCH lines of a batch script, and the #PBS lines, which sbatch reads too."""

from __future__ import annotations

from clusterdp.fakeslurm.commands.getopt import GetoptParser
from clusterdp.fakeslurm.commands.option_values import BAD
from clusterdp.fakeslurm.core.error_texts import Refusal
from clusterdp.fakeslurm.core.release import Release

Pairs = list[tuple[str, str]]
# qsub's short options that Slurm knows, with sbatch's names for them.
PBS = dict(
    word.split("=")
    for word in """
    A=account N=job-name J=array M=mail-user a=begin e=error h=hold o=output p=nice q=partition v=export
    """.split()
)


def read(parser: GetoptParser, script: bytes, ignore_pbs: bool, release: Release) -> list[Pairs]:
    """The options of each component. Lines count up to the first that is neither empty nor a comment."""
    found: list[Pairs] = [[]]
    for number, line in enumerate(script.decode("utf-8", "surrogateescape").split("\n"), 1):
        if line.startswith("#PBS") and not ignore_pbs:
            found[-1] += _pbs(line[len("#PBS") :])
        if line.startswith("#SBATCH"):
            try:
                words = directive_words(line[len("#SBATCH") :], release.backslash_keeps_space)
            except ValueError as quote:
                body = line[len("#SBATCH") :].strip()
                raise Refusal(f"sbatch: fatal: script: line {number}: Unmatched `{quote}` in [{body}]") from None
            if words[:1] in (["hetjob"], ["packjob"]):
                found.append([])
                continue
            pairs, rest = parser.parse(words, permute=False)
            if rest:
                raise Refusal(f"sbatch: error: Invalid directive found in batch script: {rest[0]}", BAD)
            found[-1] += pairs
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def _pbs(text: str) -> Pairs:
    words, found = directive_words(text), Pairs()
    while words:
        word = words.pop(0)
        if len(word) < 2 or word[0] != "-":
            continue
        letter, value = word[1], word[2:]
        if not value and letter not in "hV" and words:
            value = words.pop(0)
        if letter == "l":
            found += _pbs_resources(value)
        elif letter in PBS:
            found.append((PBS[letter], "" if letter == "h" else value))
    return found


def _pbs_resources(text: str) -> Pairs:
    """Parse -l walltime=1:00:00,nodes=2:ppn=4,mem=1gb."""
    found = Pairs()
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "walltime":
            found.append(("time", value))
        elif name in ("mem", "vmem"):
            found.append(("mem", value))
        elif name in ("nodes", "select"):
            count, *more = value.split(":")
            found.append(("nodes", count))
            each = dict(word.split("=", 1) for word in more if "=" in word)
            if "ppn" in each or "ncpus" in each:
                found.append(("ntasks-per-node", each.get("ppn") or each["ncpus"]))
        elif name == "ncpus":
            found.append(("cpus-per-task", value))
    return found


def directive_words(text: str, keeps_space: bool = False) -> list[str]:
    """Split into words: quotes group, a backslash escapes (a blank only within quotes, but with `keeps_space` a space
    anywhere), # begins a comment even within a word.
    """
    words: list[str] = []
    word, inside, quote, escaped = "", False, "", False
    for letter in text:
        if escaped and (quote or not letter.isspace() or (keeps_space and letter == " ")):
            word, inside, escaped = word + letter, True, False
            continue
        escaped = letter == "\\"
        if escaped:
            continue
        if quote:
            if letter == quote:
                quote = ""
            else:
                word += letter
        elif letter in "'\"":
            quote, inside = letter, True
        elif letter == "#":
            break
        elif letter.isspace():
            if inside:
                words.append(word)
            word, inside = "", False
        else:
            word, inside = word + letter, True
    if quote:
        raise ValueError(quote)
    return [*words, word] if inside else words
