"""`-o FILE` replaces no more than a plain file: a link stays, and a pipe is written into."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from clusterdp import cli
from clusterdp.errors import OutputError
from clusterdp.operate.output.output_file import write_output
from tests.operate.builder import RunBuilder


def test_write_output_replaces_a_file_without_leaving_temporary_files(elsewhere: Path) -> None:
    for content in (b"old", b"new"):
        write_output(Path("page.html"), content, "FILE.html")
    assert [(path.name, path.read_bytes()) for path in elsewhere.iterdir()] == [("page.html", b"new")]


@pytest.mark.parametrize("there", [True, False])
def test_write_output_keeps_a_symbolic_link_and_writes_its_target(elsewhere: Path, there: bool) -> None:
    (elsewhere / "site").mkdir()
    if there:
        (elsewhere / "site/page.html").write_text("old")
    os.symlink("site/page.html", "page.html")
    write_output(Path("page.html"), b"new", "FILE.html")
    assert os.readlink("page.html") == "site/page.html"
    assert (elsewhere / "site/page.html").read_text() == "new"


@pytest.mark.parametrize("words", [["report", "runs/digits"], ["plot", "runs/digits", "loss"]])
def test_report_and_plot_write_into_a_named_pipe(builder: RunBuilder, words: list[str], tmp_path: Path) -> None:
    builder.submitted().attempt().trained(1, 40).finished(40)
    pipe, read = tmp_path / "out.svg", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert cli.main([*words, "-o", str(pipe)]) == 0
    reader.join(20)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert b"</svg>" in read[0] or b"</html>" in read[0]


def test_write_output_into_a_closed_pipe_is_a_one_line_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    closes = threading.Thread(target=lambda: os.close(os.open(pipe, os.O_RDONLY)), daemon=True)  # open() waits for us
    closes.start()
    with pytest.raises(OutputError, match=r"pipe: cannot be written: Broken pipe\. Name another with -o FILE\.html\."):
        write_output(pipe, bytes(1 << 20), "FILE.html")
    closes.join(20)


def test_write_output_refuses_a_folder(elsewhere: Path) -> None:
    (elsewhere / "pages").mkdir()
    with pytest.raises(OutputError, match=r"pages: cannot be written: Is a directory\."):
        write_output(Path("pages"), b"x", "FILE.html")
