from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp.rehearse.clusters import small_disk
from clusterdp.rehearse.observe.file_use import FileUse

OUT = FileUse(written=[1.0])


@pytest.mark.parametrize(
    ("paths", "folder"),
    [
        (["out/a.pt", "out/b/c.pt"], "out"),
        (["out/step_100/model.pt", "out/step_100/optimizer.bin"], "out"),
        (["out/run/step_1/x.pt", "out/run/step_2/x.pt", "best.pt"], "out/run"),
        (["out/a.pt", "other/b.pt"], None),
        (["a.pt"], None),
        (["best.pt"], None),
    ],
)
def test_the_disk_is_where_all_checkpoints_are(tmp_path: Path, paths: list[str], folder: str | None) -> None:
    found = small_disk.checkpoint_folder(tmp_path, dict.fromkeys(paths, OUT) | {"data/x.pt": FileUse(read=[1.0])})
    assert found == (tmp_path / folder if folder else None)


def test_no_disk_hides_files_that_come_with_the_code(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert small_disk.checkpoint_folder(tmp_path, {"out/a.pt": OUT}) == tmp_path / "out"
    (tmp_path / "out/pretrained.pt").touch()
    assert small_disk.checkpoint_folder(tmp_path, {"out/a.pt": OUT}) is None


def test_no_disk_stands_for_checkpoints_elsewhere(tmp_path: Path) -> None:
    assert small_disk.checkpoint_folder(tmp_path, {"out/a.pt": OUT, "/scratch/me/b.pt": OUT}) is None


TASK = """
import subprocess, sys
from pathlib import Path
from clusterdp.rehearse.clusters import small_disk
words = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", 'echo; read line; stat -f -c %T "$0"', sys.argv[1]]
task = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
task.stdout.readline()
small_disk.mount(Path(sys.argv[1]), 1 << 20)
print(task.communicate("go\\n")[0].strip())
"""


def test_a_task_that_runs_already_sees_the_small_disk_and_this_machine_does_not(tmp_path: Path) -> None:
    words = small_disk.own_namespace()
    if words is None:
        pytest.skip("nothing can be mounted here")
    folder = tmp_path / "out"
    folder.mkdir()
    done = subprocess.run([*words, sys.executable, "-c", TASK, str(folder)], capture_output=True, text=True)
    assert done.stdout == "tmpfs\n", done.stderr
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
