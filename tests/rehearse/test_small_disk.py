from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp.rehearse import small_disk

TASK = """
import subprocess, sys
from pathlib import Path
from clusterdp.rehearse import small_disk
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
