"""No option is ignored in silence: each is obeyed, or listed as meaningless, or refused."""

from pathlib import Path

import pytest

import clusterdp.fakeslurm
from clusterdp.fakeslurm.commands.options.option_values import CHECKS
from clusterdp.fakeslurm.commands.options.options import BASE, IDLE, UNSUPPORTED, ever

from .options_page import page

FOLDER = Path(clusterdp.fakeslurm.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs/fake_options.md"


def test_options_page_matches_the_option_tables() -> None:
    assert PAGE.read_text() == page(), "python -m tests.fakeslurm.options_page writes it anew"


@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_every_option_is_read_by_the_code_or_listed_as_unused(command: str) -> None:
    options = ever(command)
    # Of bbf each value is refused: there are no burst buffers.
    sources = [path.read_text() for path in FOLDER.rglob("*.py") if path.name not in ("options.py", "values.py")]
    obeyed = IDLE | UNSUPPORTED | {"bbf"}
    names = {option.means for option in options} - obeyed
    unread = {name for name in names if not any(f'"{name}"' in text for text in sources)}
    assert unread == set()


def test_option_lists_name_existing_options_and_do_not_overlap() -> None:
    known = {option.name for command in BASE for option in ever(command)}
    assert known >= IDLE
    assert known >= UNSUPPORTED
    assert known >= set(CHECKS)
    assert not IDLE & UNSUPPORTED
