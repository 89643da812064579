"""`python -m tests.fakeslurm.options_page > docs/fake_options.md`: writes the page from the tables."""

import textwrap

from clusterdp.fakeslurm.commands.options.options import BASE, IDLE, UNSUPPORTED, ever

HEAD = """\
# Options without effect on a fake cluster

Every option of sbatch, srun and salloc does here what it does on Slurm 24.11, except those below. A value that Slurm
could not read is refused nevertheless, in Slurm's words; so is an option that Slurm does not know.

`python -m tests.fakeslurm.options_page` writes this page from the tables in
`clusterdp/fakeslurm/commands/options/options.py`; a test compares them.
"""
IDLE_HEAD = """
## Accepted, without effect

They ask for what a laptop does not have: CPU binding, mail, profiling, a network. scontrol, squeue and `--json` show
them where Slurm would. `--time-min` has an effect beside `--deadline` only.
"""
REFUSED_HEAD = """
## Refused

Slurm knows them, this cluster does not. They are refused with exit status 255, never ignored. So are
`--requeue=expedite`, `#PBS` lines of a script (unless `--ignore-pbs` makes them comments), and options of other
commands that would select or change something.
"""


def page() -> str:
    return HEAD + IDLE_HEAD + _table(IDLE) + REFUSED_HEAD + _table(UNSUPPORTED)


def _table(names: frozenset[str]) -> str:
    lines = []
    for command in BASE:
        mine = sorted({option.name for option in ever(command) if option.name in names})
        text = f"{command}: " + ", ".join(f"`--{name}`" for name in mine)
        lines.append(textwrap.fill(text, 118, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False))
    return "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
