"""What jobs have used is measured, for tools such as seff and reportseff."""

import json
import os
import signal
import sys

from tests.fakeslurm.conftest import Desk

WORK = """\
import time
held = bytearray(100 << 20)
while time.process_time() < 0.5:
    pass
"""


def test_sacct_reports_memory_and_cpu_time_of_each_step(desk: Desk) -> None:
    (desk.folder / "work.py").write_text(WORK)
    job = desk.submit("--ntasks=2", script=f"srun --ntasks=1 true\nsrun {sys.executable} work.py\n")
    desk.cluster.wait(job)
    fields = "JobID,MaxRSS,MaxRSSTask,MaxRSSNode,AveRSS,AveCPU,MinCPU,MinCPUTask,TotalCPU,UserCPU,SystemCPU"

    def listed() -> list[list[str]]:
        return [line.split("|") for line in desk.say(f"sacct -n -P -j {job} -o {fields}").splitlines()]

    desk.until(lambda: listed() and listed()[-1][1], "the usage of the last step")
    whole, batch, little, work = listed()
    assert whole[1:8] == [""] * 7  # of a job, CPU time alone
    assert batch[0].endswith(".batch")
    assert 100 << 10 < int(work[1].rstrip("K")) < 1 << 20
    assert work[2] in "01"
    assert work[3] == "n1"
    assert 100 << 10 < int(work[4].rstrip("K")) <= int(work[1].rstrip("K"))
    assert seconds(work[8]) >= 2 * 0.5
    assert seconds(little[8]) < seconds(work[8]) <= seconds(whole[8])
    assert abs(seconds(work[9]) + seconds(work[10]) - seconds(work[8])) < 0.01
    most = desk.say(f"sacct -n -P -j {job}.1 -o MaxVMSize,TRESUsageInMax,TRESUsageInTot,StdOut")
    assert most.split("|")[0] == work[1]
    assert [f",mem={work[1]}," in each for each in most.split("|")[1:]] == [True, True, False]
    assert desk.say(f"sacct -n -P -X -j {job} -o StdOut,StdErr,StdIn") == f"{desk.folder}/%j.out||/dev/null"
    [told] = json.loads(desk.say(f"sacct --json -j {job}"))["jobs"]
    assert told["steps"][-1]["time"]["total"]["seconds"] == int(seconds(work[8]))


def test_sacct_shows_the_words_of_srun_as_submit_line_of_steps(desk: Desk) -> None:
    job = desk.submit("--wait", script="srun -n1 --job-name named bash -c 'exit 0'")
    look = f"sacct -n -P -j {job} -o JobID,SubmitLine"
    line = "srun -n1 --job-name named bash -c exit 0"
    desk.until(lambda: desk.say(look).splitlines()[1:] == [f"{job}.batch|", f"{job}.0|{line}"], "the rows")


def test_sacct_shows_the_same_usage_after_the_daemon_is_killed(desk: Desk) -> None:
    job = desk.submit(script="true")
    desk.cluster.wait(job)
    line = f"sacct -n -P -j {job}.batch -o MaxRSS,TotalCPU"
    desk.until(lambda: "K" in desk.say(line), "the usage of the batch script")
    before = desk.say(line)
    os.kill(int((desk.cluster.folder / "daemon.pid").read_text()), signal.SIGKILL)
    assert desk.say(line) == before


def test_sstat_shows_the_cpu_time_of_a_running_step(desk: Desk) -> None:
    job = desk.submit(script=f"{sys.executable} -c 'while True: pass'")
    desk.until(lambda: desk.field(job, "JobState") == "RUNNING")
    desk.until(lambda: desk.say(f"sstat -n -P -j {job}.batch -o AveCPU") > "00:00:00", "a second of CPU time")
    desk.say(f"scancel {job}")


def seconds(clock: str) -> float:
    minutes, _, rest = clock.partition(":")
    return int(minutes) * 60 + float(rest)
