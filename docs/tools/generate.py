"""Writes the generated pages of docs/reference: `python -m docs.tools.generate`, from the top of the repository.

Each page comes from the code: the config tree, the parsers of the command line, the errors, the schema of --json, the
names of files, and the known failures. tables.py has what no code has.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from clusterdp import errors, rundir
from clusterdp.batch.files.causes import CAUSES, FAULTS
from clusterdp.checkpoint import errors as checkpoint_errors
from clusterdp.config.explain import KeyExplanation, comments_of, explanations
from clusterdp.config.tree import Config, SiteConfig
from clusterdp.operate.queue import pending_reasons
from clusterdp.operate.why import signatures
from clusterdp.rundir import sweep
from docs.tools.command_line import json_page, verbs_page
from docs.tools.failure_examples import EXAMPLES
from docs.tools.markdown import block, code, escaped, page, sentence, table
from docs.tools.tables import EXIT_CODES, FILES, SWEEP_FILES, FileUse

FOLDER = Path(__file__).parents[1] / "reference"

# -- config.md --


def config_page() -> str:
    tree = Config()
    sections = [each for each in dataclasses.fields(tree) if dataclasses.is_dataclass(getattr(tree, each.name))]
    names = {each.name for each in sections}
    keys = [_key(each) for each in explanations() if each.key.partition(".")[0] not in names]
    intro = (
        "Each key of a config, with the text that `clusterdp show --explain KEY` prints. `clusterdp submit train.yaml "
        "restart.max_crashes=0` overrides a key of the file."
    )
    parts = [intro, "## Keys of the run", *keys]
    for each in sections:
        parts += [f"## {code(each.name)}", *_section(getattr(tree, each.name), each.name)]
    names = {each.key for each in explanations()}
    parts += ["## Keys of the site profile alone"]
    parts += [_key(each) for each in explanations(SiteConfig()) if each.key not in names]
    return page("Config keys", *parts)


def _section(section: Any, name: str, comment: str = "") -> Iterator[str]:
    """Yields the parts about a section of the config tree, and about the sections within it."""
    yield " ".join(sentence(escaped(each)) for each in (type(section).__doc__ or "", comment) if each)
    comments = comments_of(type(section))
    inner = [each for each in dataclasses.fields(section) if dataclasses.is_dataclass(getattr(section, each.name))]
    within = tuple(f"{name}.{each.name}." for each in inner)
    keys = [each for each in explanations(section, f"{name}.") if not each.key.startswith(within)]
    if "." in name:
        rows = [(code(each.key), escaped(each.text), _default(each), code(each.shown_example)) for each in keys]
        yield table(("key", "meaning", "default", "example"), rows)
    else:
        yield from map(_key, keys)
    for each in inner:
        yield f"### {code(f'{name}.{each.name}')}"
        yield from _section(getattr(section, each.name), f"{name}.{each.name}", comments.get(each.name, ""))


def _key(each: KeyExplanation) -> str:
    default = f"- default: {_default(each)}\n" if each.shown_default else ""
    return f"### {code(each.key)}\n\n{escaped(each.text)}\n\n{default}- example: {code(each.shown_example)}"


def _default(each: KeyExplanation) -> str:
    return each.shown_default if each.shown_default in ("", "none") else code(each.shown_default)


# -- exit_codes.md --


def exit_codes_page() -> str:
    tree = f"{errors.__doc__}\n{checkpoint_errors.__doc__}"
    said = {name: about for name, about in re.findall(r"(\w+) +exit \d+ *(.*)", tree) if about}
    said = {name: re.sub(r" \(checkpoint/errors\.py\)", "", about) for name, about in said.items()}
    rows = [(code(kind.__name__), code(kind.__mro__[1].__name__), str(kind.exit_code)) for kind in error_classes()]
    rows[0] = (rows[0][0], "", rows[0][2])
    return page(
        "Exit codes",
        "Every verb exits with one of these codes. An error is one line on stderr: `<key or object>: <mistake, with "
        "the value>. <remedy>.` `clusterdp --debug VERB` prints a traceback, too.",
        table(("code", "meaning"), [(number, escaped(about)) for number, about in EXIT_CODES.items()]),
        "## Errors in Python",
        "Each error class has the code as `exit_code`. `clusterdp` exports the classes of `clusterdp.errors`, and "
        "`clusterdp.checkpoint` those of checkpoints.",
        table(
            ("class", "base", "code", "meaning"),
            [(*row, escaped(said.get(row[0].strip("`"), ""))) for row in rows],
        ),
    )


def error_classes() -> list[type[errors.ClusterdpError]]:
    """Returns the error classes, each after its base."""
    found = [
        *vars(errors).values(),
        checkpoint_errors.ClaimLost,
        checkpoint_errors.LostContact,
        checkpoint_errors.ReplicasDiffer,
    ]
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, errors.ClusterdpError)]
    return sorted(kinds, key=lambda kind: [kinds.index(base) for base in kind.__mro__[::-1] if base in kinds])


# -- run_folder.md --


def listed_files(module: Any) -> list[tuple[int, str, str]]:
    """Returns (indentation, name, meaning) of each file in the docstring of rundir or rundir.sweep."""
    found: list[tuple[int, str, str]] = []
    for line in (inspect.getdoc(module) or "").split("\n\n")[1].splitlines():
        name, gap, about = re.match(r" *(.*?)(?:( {2,})(.*))?$", line).groups()  # type: ignore[union-attr]
        indent = len(line) - len(line.lstrip())
        if gap is None:  # the meaning goes on
            found[-1] = (*found[-1][:2], f"{found[-1][2]} {name}")
        else:
            found.append((indent, name, about))
    return found


def run_folder_page() -> str:
    files = listed_files(rundir)
    outer = min(indent for indent, _, _ in files)
    ours = [each for each in files if each[0] == outer]
    of_attempt = [each for each in files if each[0] > outer]
    causes = [(code(cause), escaped(about), "yes" if cause in FAULTS else "") for cause, about in CAUSES.items()]
    return page(
        "The run folder",
        "`clusterdp submit` makes a run folder, and every process of the run reads and writes plain files there. A "
        "file has one writer at a time. Readers accept files that are missing, torn or damaged. Run folders stay "
        "readable for ever.",
        _files(ours, FILES),
        "## An attempt",
        "The names are relative to `attempts/<job>.<restart>/`, or in a run without Slurm to "
        "`attempts/local.<milliseconds since 1970>/`. The config and the attempt's end decide which files exist.",
        _files(of_attempt, FILES),
        "### The words of `cause`",
        "`restart.max_crashes` counts the faults.",
        table(("word", "the attempt", "fault"), causes),
        "## A sweep",
        "The folder of a sweep has a run folder for each element.",
        _files(listed_files(sweep), SWEEP_FILES),
    )


def _files(files: Sequence[tuple[int, str, str]], uses: dict[str, FileUse]) -> str:
    rows = [(code(name), escaped(about), *uses[name]) for _, name, about in files]
    return table(("name", "what it has", "writer", "readers", "form"), rows)


# -- failures.md --


def failures_page() -> str:
    parts: list[str] = []
    for heading, names in failure_groups():
        parts.append(f"## {sentence(heading).rstrip('.')}")
        parts += [_failure(signatures.BY_NAME[name]) for name in names]
    heads = ("reason", "words", "remedy", "never starts by itself")
    return page(
        "Known failures, and reasons to wait",
        "`clusterdp why` looks for these failures in the logs of the ranks, and prints the cause and the remedy. An "
        "example is a line of real output. The first match counts, in this order.",
        *parts,
        "## Reasons to wait",
        "`clusterdp why` and `status` explain Slurm's reasons for a job that is pending (`squeue -o %r`). JOB is the "
        "id of the job.",
        table(heads, list(map(_reason, pending_reasons.REASONS))),
        "### Limits of accounts and QOS",
        "A limit's name has the limited resource, here CPU, and the owner of the limit: `Assoc` (an account) or `QOS`. "
        "The table has an example of each form.",
        table(heads, list(map(_reason, limits()))),
    )


def failure_groups() -> list[tuple[str, list[str]]]:
    """Returns the comments that divide the table of signatures, each with the names below it."""
    found: list[tuple[str, list[str]]] = []
    lines = inspect.getsource(signatures).splitlines()
    for line, below in pairwise(lines):
        if line.startswith("    # --- "):
            found.append((line.removeprefix("    # --- "), []))
        elif line == "    Signature(":
            found[-1][1].append(ast.literal_eval(below.strip().rstrip(",")))
    return found


def _failure(one: signatures.Signature) -> str:
    note = "\n\nThe rank with this line most likely only reports that another rank has failed." * one.consequence
    example = block(EXAMPLES[one.name])
    return f"### {code(one.name)}\n\nCause: {escaped(one.cause)}.\n\n{escaped(one.remedy)}{note}\n\n{example}"


def limits() -> list[str]:
    """Returns an example for each pattern of a limit's name."""
    found = []
    for pattern, *_ in pending_reasons.LIMITS:
        name = re.sub(r"\(\?:[^()]*\)\?", "", pattern).replace("(Assoc|QOS)", "QOS").replace(r"(\w+?)", "CPU")
        name = re.sub(r"\(\w+\|(\w+)\|\w+\)", r"\1", name)
        found.append(re.sub(r"\((\w*)(?:\|\w*)*\)", r"\1", name))
    return found


def _reason(name: str) -> tuple[str, str, str, str]:
    reason = pending_reasons.explain(name)
    assert reason is not None, name
    return code(name), escaped(reason.words), escaped(reason.do), "yes" if reason.stuck else ""


PAGES: dict[str, Callable[[], str]] = {
    "config.md": config_page,
    "verbs.md": verbs_page,
    "exit_codes.md": exit_codes_page,
    "json.md": json_page,
    "run_folder.md": run_folder_page,
    "failures.md": failures_page,
}


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())


if __name__ == "__main__":
    write()
