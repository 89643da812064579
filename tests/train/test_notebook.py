"""launch() in the cells of a real Jupyter kernel. Extra `notebook`, which `make test-all` installs."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.train.ranks import wait_until

pytest.importorskip("nbclient")

pytestmark = pytest.mark.slow

DEFINITIONS = """\
import time, torch, clusterdp
from clusterdp.train import Trainer

class Net(torch.nn.Linear): pass
class Mine(Exception): pass
SIZE = 4

def main(job, epochs=2, slow=0.0, bad=None):
    torch.manual_seed(0)
    net = Net(SIZE, 1)
    def on_step(trainer, values):
        time.sleep(slow)
        if bad == job.rank and job.step == 3:
            raise Mine("of a cell")
    mse = lambda outputs, targets: (outputs - targets).square().mean()
    trainer = Trainer(net, mse, torch.optim.SGD(net.parameters(), lr=0.1), on_step=[on_step])
    return trainer.fit((torch.randn(640, SIZE), torch.randn(640, 1)), epochs=epochs, batch_size=8)
"""


class Notebook:
    """A kernel, and what its cells show."""

    def __init__(self, folder: Path):
        import nbclient
        import nbformat

        self._cell = nbformat.v4.new_code_cell
        self.client = nbclient.NotebookClient(nbformat.v4.new_notebook(), timeout=120, allow_errors=True)
        self.client.resources = {"metadata": {"path": str(folder)}}
        self.number = 0

    def run(self, text: str) -> str:
        """Runs a cell; returns its output, and the error that it shows."""
        cell = self._cell(text)
        self.client.nb.cells.append(cell)
        self.client.execute_cell(cell, self.number)
        self.number += 1
        shown = ""
        for output in cell.outputs:
            if output["output_type"] == "error":
                shown += f"{output['ename']}: {output['evalue']}\n"
            else:
                shown += output.get("text") or output["data"]["text/plain"]
        return shown

    def restart(self) -> None:
        from nbclient.util import run_sync

        run_sync(self.client.km.restart_kernel)(now=True)  # type: ignore[union-attr]
        run_sync(self.client.kc.wait_for_ready)(timeout=60)  # type: ignore[union-attr]

    @property
    def pid(self) -> int:
        return int(self.run("import os; print(os.getpid())"))


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    notebook = Notebook(tmp_path)
    with notebook.client.setup_kernel():
        assert notebook.run(DEFINITIONS) == ""
        yield notebook


def ranks() -> list[int]:
    listed = subprocess.run(["pgrep", "-f", "launched_ran[k]"], capture_output=True, text=True).stdout
    return [int(line) for line in listed.split()]


def sends(number: int, pid: int, file: Path) -> threading.Thread:
    """Sends the signal to a kernel once the file is there, in a thread of its own."""

    def send() -> None:
        wait_until(file.exists, "a saved metric")
        os.kill(pid, number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_cell_shows_the_output_and_result_of_launched_ranks(notebook: Notebook) -> None:
    shown = notebook.run("history = clusterdp.launch(main, ranks=2)\nhistory")
    assert "clusterdp: epoch 2  step 80  loss" in shown
    assert shown.splitlines()[-1].split()[:2] == ["2", "80"]
    assert notebook.run("clusterdp.launch(lambda job: job.world_size + SIZE)") == "6"


@pytest.mark.parametrize("rank", [0, 1])
def test_cell_catches_its_own_class_of_error_from_a_rank(notebook: Notebook, rank: int) -> None:
    call = f"clusterdp.launch(main, ranks=2, bad={rank})"
    assert "caught of a cell" in notebook.run(f"try: {call}\nexcept Mine as error: print('caught', error)")
    assert notebook.run(call).endswith("Mine: of a cell\n")
    assert ranks() == []


def test_interrupted_cell_saves_and_its_next_run_continues(notebook: Notebook, tmp_path: Path) -> None:
    whole = notebook.run("print(clusterdp.launch(main, ranks=2, epochs=3).rows)").splitlines()[-1]
    begun = tmp_path / "begun"
    sender = sends(signal.SIGINT, notebook.pid, begun)
    mark = f"import pathlib; pathlib.Path('{begun}').touch()"
    slow = f"def slowly(job, **params):\n    {mark}\n    return main(job, **params)\n"
    shown = notebook.run(f"{slow}clusterdp.launch(slowly, ranks=2, run_dir='run', epochs=3, slow=0.1)")
    sender.join()
    assert "KeyboardInterrupt: stopped at step" in shown
    assert ranks() == []
    again = notebook.run("print(clusterdp.launch(main, ranks=2, run_dir='run', epochs=3).rows)").splitlines()[-1]
    assert again == whole


def test_session_of_20_cells_survives_errors_interrupts_and_a_restart(notebook: Notebook, tmp_path: Path) -> None:
    """DEFINITIONS is the first of the 20 cells. The kernel restarts after the tenth."""
    run = notebook.run
    assert run("clusterdp.launch(lambda job: job.rank, ranks=2)") == "0"
    assert "Mine: of a cell" in run("clusterdp.launch(main, ranks=2, bad=1)")
    assert run("whole = clusterdp.launch(main, ranks=2, epochs=3)").count("clusterdp: epoch") == 3
    digest = "import hashlib; print(hashlib.sha256(repr({}.rows).encode()).hexdigest())"
    wanted = run(digest.format("whole"))
    begun = tmp_path / "begun"
    sender = sends(signal.SIGINT, notebook.pid, begun)
    slow = (
        "def slowly(job, **params):\n    import pathlib; pathlib.Path('begun').touch()\n    return main(job, **params)"
    )
    assert run(slow) == ""
    call = "clusterdp.launch({}, ranks=2, run_dir='run', epochs=3{})"
    assert "KeyboardInterrupt: stopped at step" in run(call.format("slowly", ", slow=0.1"))
    sender.join()
    assert "Mine: of a cell" in run(call.format("main", ", bad=1").replace("'run'", "'other'"))
    assert ranks() == []
    notebook.restart()
    assert "NameError" in run("clusterdp")
    assert run(DEFINITIONS) == ""
    assert "clusterdp: epoch 3" in run(f"history = {call.format('main', '')}")
    assert run(digest.format("history")) == wanted
    assert run("history").splitlines()[0].split()[:3] == ["epoch", "step", "loss"]
    assert "a Plot" in run("history.plot()")
    assert run("net = Net(SIZE, 1); data = torch.randn(64, SIZE), torch.randn(64, 1)") == ""
    trainer = "Trainer(net, torch.nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1))"
    assert run(f"trainer = {trainer}") == ""
    assert "epoch 1" in run("trainer.fit(data)")
    assert run("tuple(trainer.predict(data[0]).shape)") == "(64, 1)"
    assert run("trainer.evaluate(data)").startswith("{'loss': ")
    assert notebook.number == 20
    assert ranks() == []


def test_ranks_end_with_a_killed_kernel(notebook: Notebook, tmp_path: Path) -> None:
    from nbclient.exceptions import DeadKernelError

    begun = tmp_path / "begun"
    sender = sends(signal.SIGKILL, notebook.pid, begun)
    call = f"import pathlib; pathlib.Path('{begun}').touch()\nclusterdp.launch(main, ranks=2, epochs=99, slow=0.1)"
    with pytest.raises(DeadKernelError):
        notebook.run(call)
    sender.join()
    wait_until(lambda: ranks() == [], "the end of the ranks")
