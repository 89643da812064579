"""Elements of arrays that are cancelled one by one, as a real Slurm 22.05 shows them."""

import signal
import subprocess

from clusterdp.fakeslurm.core.state import JobState
from tests.fakeslurm.conftest import Desk

DEAF = "trap '' TERM\ntouch deaf\nsleep 100 & wait\nsleep 100 & wait\n"


def test_array_throttle_starts_the_next_element_while_a_cancelled_one_is_completing(desk: Desk) -> None:
    job = desk.submit("--array=0-2%1", script=DEAF)
    desk.until((desk.folder / "deaf").exists, "the first element")
    desk.say(f"scancel {job}_0")
    states = f"squeue -h -r -j {job} -o '%i %t'"
    desk.until(lambda: f"{job}_1 R" in desk.say(states), "the second element")
    assert f"{job}_0 CG" in desk.say(states)
    desk.say(f"scancel --full -s KILL {job}")


def test_cancelled_held_array_keeps_its_bracketed_job_id_on_slurm_22_05(desk_22_05: Desk) -> None:
    job = desk_22_05.submit("--hold", "--array=0-2%1", script="true")
    rows = f"sacct -n -P -j {job} -o JobID,State"
    desk_22_05.say(f"scancel {job}_0")
    desk_22_05.until(lambda: desk_22_05.say(rows) == f"{job}_[1-2%1]|PENDING")
    desk_22_05.say(f"scancel {job}_1")
    desk_22_05.say(f"scancel {job}_2")
    desk_22_05.until(lambda: "CANCELLED" in desk_22_05.say(rows))
    assert desk_22_05.say(rows).startswith(f"{job}_[1-2%1]|CANCELLED by ")
    assert desk_22_05.say(f"squeue -h -t all -j {job} -o '%i|%t|%r|%R'") == f"{job}|CA|JobHeldUser|"
    assert desk_22_05.say(f"squeue -h -r -t all -j {job} -o %i") == job


def test_squeue_R_is_empty_for_an_array_cancelled_while_held(desk: Desk) -> None:
    job = desk.submit("--hold", "--array=0-2%1", script="true")
    desk.say(f"scancel {job}")
    assert desk.say(f"squeue -h -t all -j {job} -o '%i|%R'") == f"{job}_[0-2%1]|"
    assert desk.say(f"squeue -h -r -t all -j {job} -o '%i|%R'").split() == [f"{job}_{i}|" for i in range(3)]


def test_job_of_a_killed_srun_is_accounted_as_cancelled(desk: Desk) -> None:
    srun = subprocess.Popen(["srun", "sleep", "100"], env=desk.cluster.environ(), cwd=desk.folder)
    desk.until(lambda: desk.say("squeue -h -o %t") == "R")
    job = desk.say("squeue -h -o %i")
    srun.send_signal(signal.SIGKILL)
    srun.wait()
    row = f"sacct -n -P -j {job} -o JobID,State,ExitCode"
    desk.until(lambda: "CANCELLED" in desk.say(row))
    whole, step = (line.split("|") for line in desk.say(row).splitlines())
    assert whole[1].startswith("CANCELLED by ")
    assert whole[2] == "0:0"
    assert step[2] == "0:9"


def test_dependency_after_stays_unfulfilled_for_an_array_cancelled_while_held(desk: Desk) -> None:
    """As on 22.05.8 and 24.11.5, which go on counting those elements as waiting."""
    held = [desk.submit("--hold", *array, script="true") for array in (["--array=4"], ["--array=1-3"], [])]
    behind = {job: desk.submit(f"--dependency=after:{job}", script="true") for job in held}
    apart = desk.submit("--hold", "--array=1-3", script="true")
    behind[apart] = desk.submit(f"--dependency=after:{apart}", script="true")
    of_element = desk.submit(f"--dependency=after:{held[1]}_2", script="true")
    desk.say(f"scancel {' '.join(held)} {apart}_[1-3]")
    for job in (behind[held[2]], behind[apart], of_element):
        desk.cluster.wait(job, JobState.COMPLETED)
    for job in held[:2]:
        assert desk.say(f"squeue -h -j {behind[job]} -o '%r %E'") == f"Dependency after:{job}_*(unfulfilled)"
