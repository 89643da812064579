"""Step: runs the srun command of the ranks from its start to its end, and watches for hangs meanwhile."""

import math
import os
import signal
import subprocess
import time
from typing import IO, Callable, List, Mapping, Optional, Sequence, Tuple

from ..decide.evidence import ASKED
from ..decide.policy import exhausted
from ..files.job import Job
from ..files.record import Record
from ..files.rules import Rules
from ..files.texts import warn, warn_of_fault, words
from ..nodes.keepers import BLAMED_S, Keepers
from ..nodes.placement import Placement
from ..processes import slurm
from ..processes.children import Children, end, exit_code
from ..processes.notify import Notify
from .ending import Ending
from .errors import Errors, grace_s
from .growth import Growth
from .log_silence import LogSilence
from .reserve import Reserve, logs_of

LINGERING_S = 300
HANG_S = 60
FINAL = ("done", "stop", "overtaken")
# Seconds between the first failure of a task and the end of the others, if the ranks' watchers may be writing down a
# hang
HANG_GRACE_S = 5
SILENT_GRACE_S = 5.0  # seconds from TERM to KILL for an srun that waits for tasks on a silent node
LONG_GRACE_S = 30  # the same if the other tasks may be saving
# Words of srun about a task that has saved, or has got a signal, itself or in a shell
SAVING = [ASKED, "Terminated", "User defined signal 1", "User defined signal 2"]
SAVING += ["Exited with exit code {}".format(code) for code in (138, 140, 143)]
MISTAKEN = "Exited with exit code 2"


class Watch:
    """Calls `look` every `seconds`, until it returns False."""

    def __init__(self, children: Children, seconds: int, look: Callable[[], bool]) -> None:
        self.children = children
        self.seconds = seconds
        self.look = look
        self._start(seconds)

    def _start(self, seconds: float) -> None:
        self.timer = self.children.timer(seconds)
        self._suspended_s = self.children.suspended_s

    def poll(self) -> None:
        if self.timer is None or self.timer.poll() is None:
            return
        lost_s = min(self.children.suspended_s - self._suspended_s, self.seconds)
        if lost_s > 0 or self.look():
            self._start(lost_s or self.seconds)
        else:
            self.timer = None

    def end(self) -> None:
        if self.timer is not None:
            end(self.timer)


class Step:
    """first: srun's words about the end of the first task that has failed, in the last run; empty if none has.
    has_killed: whether this program has then ended the other tasks. lost: silent nodes, because of which this program
    has ended the step. grows: whether the ranks were told to stop because of idle nodes."""

    def __init__(
        self,
        job: Job,
        rules: Rules,
        record: Record,
        notify: Notify,
        ending: Ending,
        children: Children,
        placement: Placement,
    ) -> None:
        self.job = job
        self.rules = rules
        self.record = record
        self.notify = notify
        self.ending = ending
        self.children = children
        self.placement = placement
        self._agreed = False
        self.keepers: Optional[Keepers] = None
        self.reserve: Optional[Reserve] = None
        self.first = ""
        self.has_killed = False
        self.grows = False
        self.lost: List[str] = []
        self._kill_at = math.inf  # time at which an srun that was ended gets KILL
        self._consider_at = 0.0  # time at which silent nodes may end the step

    def run(self, words: Sequence[str], out: Optional[IO[bytes]] = None, watched: bool = True) -> int:
        """Runs the command to its end, and acts on TERM meanwhile. Returns its exit code. words: with {logs} in place
        of the folder of the logs. watched: whether it is the ranks'."""
        self.first, self.has_killed = "", False
        self.lost, self._kill_at, self._consider_at = [], math.inf, 0.0
        terms, words = self.children.terms, self.children.with_srun(words)
        try:
            child, errors = self._start(words, out, watched)
        except OSError as error:
            warn("{}: {}".format(words[0], error.strerror))
            return 127
        watches = self._watches(child) if watched else []

        keepers = self.keepers if watched else None
        # After a loss the nodes may change again, and ranks in reserve need memory, too.
        may_wait = watched and not self.placement.lost and "memory" not in self.ending.history.ended
        reserve = self.reserve if may_wait else None
        if errors and keepers is not None:
            errors.on_failure = keepers.ask
        beside = [each for each in (keepers, reserve) if each is not None]
        for each in beside:
            each.begin()
        timed = [*([errors] if errors else []), *beside]

        def has_news() -> bool:
            return any(each.is_due() for each in timed) or time.monotonic() >= self._kill_at or self.children.has_news()

        def left_s() -> float:
            return min([max(self._kill_at - time.monotonic(), 0.0), *(each.left_s for each in timed)])

        try:
            while child.poll() is None:
                timers = [watch.timer for watch in watches if watch.timer is not None]
                self.children.wait([child, *timers], has_news, lambda: errors.open if errors else (), left_s)
                try:
                    has_term = self.children.terms > terms
                    if errors and errors.is_due():
                        self._end_others(child, errors, has_term)
                    self._tend(child, keepers, has_term)
                    if reserve is not None and reserve.is_due():
                        self._start_reserve(reserve, words)
                    if self.children.take_news():
                        self.on_term()
                    for watch in watches:
                        watch.poll()
                except Exception as error:
                    warn_of_fault(error, "The step goes on.")
        finally:
            for watch in watches:
                watch.end()
            if errors:
                errors.close()
                self.first = errors.how
        return exit_code(child)

    def _start(
        self, words: Sequence[str], out: Optional[IO[bytes]], watched: bool
    ) -> "Tuple[subprocess.Popen[bytes], Optional[Errors]]":
        environ: Mapping[bytes, bytes] = self.children.environ
        if watched:
            words, environ = self.placement.step(with_logs(words, self.job.logs), environ, self.record)
            taken = self._taken(environ)
            if taken:
                return taken
        if not watched or not self.rules.in_place:
            return self.children.start(words, out, None, environ), None
        errors = Errors()
        try:
            return self.children.start(words, out, errors.writing, environ), errors
        finally:
            os.close(errors.writing)

    def _taken(self, environ: Mapping[bytes, bytes]) -> "Optional[Tuple[subprocess.Popen[bytes], Errors]]":
        """Returns the step in reserve as that of the ranks, if there is one on the same nodes."""
        if self.reserve is None:
            return None
        if self.placement.lost:
            self.reserve.close()
        taken = self.reserve.take(environ, self.job)
        if taken:
            self.record.event("warm")
        return taken

    def _start_reserve(self, reserve: Reserve, words: Sequence[str]) -> None:
        words, environ = self.placement.step(with_logs(words, logs_of(self.job)), self.children.environ, self.record)
        reserve.start(words, environ, self.job)

    def _watches(self, child: "subprocess.Popen[bytes]") -> List[Watch]:
        found = []
        if self.rules.kind == "entry":
            found.append(Watch(self.children, LINGERING_S, lambda: self._end_lingering(child)))
        growth = Growth(self.rules, self.job, self.ending.slurm, self.placement, self.ending.history.bad)
        if growth.is_wanted:
            found.append(Watch(self.children, growth.pause_s, lambda: self._look_for_nodes(growth, child)))
        if self.rules.silence_s:
            silence = LogSilence(self.rules, self.job.logs, self.children, self.placement)
            found.append(Watch(self.children, silence.pause_s, lambda: self._look_at_silence(silence, child)))
        if "hang" in self.rules.notify:
            found.append(Watch(self.children, HANG_S, self._look_for_hang))
        return found

    def _end_others(self, child: "subprocess.Popen[bytes]", errors: Errors, has_term: bool) -> None:
        """Ends the other tasks after the first failure of a task, or gives them more time."""
        least_s = self._grace_s(errors.how, has_term)
        if errors.grace_s < least_s:
            errors.grace_s = least_s
            return
        errors.grace_s, self.has_killed = math.inf, True
        child.terminate()  # on TERM, srun sends KILL to the tasks, which may ignore TERM

    def _tend(self, child: "subprocess.Popen[bytes]", keepers: Optional[Keepers], has_term: bool) -> None:
        if keepers is not None and keepers.is_due():
            keepers.tend(self.record)
            self._end_silent(child, keepers, has_term)
        if time.monotonic() >= self._kill_at:
            self._kill_at = math.inf
            child.kill()

    def _end_silent(self, child: "subprocess.Popen[bytes]", keepers: Keepers, has_term: bool) -> None:
        """Ends the step if the ranks can start again without silent nodes. srun would wait for the tasks there, and its
        orders to other nodes may go through a silent one: therefore it gets KILL after TERM, and the keepers kill the
        ranks (see attempt.py)."""
        lost = [] if self.lost else self.placement.replaceable(keepers.lost())
        if not lost or time.monotonic() < self._consider_at:
            return
        self._consider_at = time.monotonic() + BLAMED_S
        if self._may_save(has_term) or exhausted(self.ending.history, "node-lost", self.rules, 1):
            return
        warn("no sign of life from {} for {:.0f} s. Ending the step.".format(" ".join(lost), BLAMED_S))
        self.lost, self._kill_at = lost, time.monotonic() + SILENT_GRACE_S
        child.terminate()

    def _grace_s(self, how: str, has_term: bool) -> float:
        """Returns the seconds between the first failure of a task and the end of the others. The others may be saving
        if the task has saved, because of a signal, or before the end of the job; rank 0 of an entry may be writing down
        that the run cannot work. how: srun's words about the end of the task."""
        writes = how == MISTAKEN and self.rules.kind == "entry" and not os.path.exists(self.job.file("outcome"))
        if how in SAVING or writes or self._may_save(has_term):
            return LONG_GRACE_S
        hangs = os.path.exists(self.job.file("hang")) and not os.path.exists(self.job.file("hung"))
        return HANG_GRACE_S if hangs else grace_s(how)

    def _may_save(self, has_term: bool) -> bool:
        """Returns whether the tasks may be saving, because of a signal, or before the end of the job."""
        if has_term or self.ending.requeued or self.job.is_marked("cancelled") or self.job.is_marked("stop"):
            return True
        look = self.ending.slurm.glance()
        is_near = look.ends_at is not None and look.ends_at - time.time() <= self.rules.warned_s
        return is_near or look.state != slurm.RUNNING

    def on_term(self) -> None:
        """Acts on TERM, which comes at scancel, at a requeue, at the time limit, and at a preemption without grace
        time."""
        if self.ending.requeued:
            return
        look = self.ending.look()
        # At the time limit Slurm does not requeue, and KILL comes soon. Therefore this program requeues first.
        is_ours = self.rules.requeue and look.state == slurm.TIME_LIMIT and not self._is_final()
        if is_ours and not exhausted(self.ending.history, "timeout", self.rules, 1):
            self.ending.requeue("timeout", look)
        self.record.event("signal", name="TERM")

    def _is_final(self) -> bool:
        """Returns whether the ranks or the user have ended the run."""
        word = "".join(words(self.job.file("outcome"))[:1])
        return self.job.is_marked("cancelled") or self.job.is_marked("stop") or word in FINAL

    def _end_lingering(self, child: "subprocess.Popen[bytes]") -> bool:
        """Ends srun if it still runs minutes after the ranks have left their outcome, because a slurmstepd was killed,
        or a rank cannot exit. Slurm itself notices a killed slurmstepd only when the node registers again, in half an
        hour, or at the time limit."""
        if not self._agreed:
            self._agreed = os.path.exists(self.job.file("outcome"))
            return True
        warn("the ranks have left their outcome, and srun has not ended for 5 minutes. Ending it.")
        child.terminate()
        return False

    def _look_for_nodes(self, growth: Growth, child: "subprocess.Popen[bytes]") -> bool:
        size = growth.look()
        if not size:
            return True
        said = "enough nodes for {} have been idle for {:.0f} s. The ranks save, and the job is requeued for them."
        warn(said.format(size, self.rules.grow_after_s or 0))
        self.record.event("grows", size=size)
        self.grows = True
        child.send_signal(signal.SIGUSR2)  # srun hands it on, and for the ranks it means that the time is nearly up
        return False

    def _look_at_silence(self, silence: LogSilence, child: "subprocess.Popen[bytes]") -> bool:
        found = silence.look()
        if found is None:
            return True
        if not found.hangs:
            self.record.event("hang-ended")
            return True
        if found.reason:
            warn("the program hangs: {}; see {}".format(found.reason, self.job.file("hang.txt")))
            text = "{}\nnode pid state ticks command\n{}".format(found.reason, found.processes)
            self.record.note("hang.txt", text)
            self.record.event("hang", ranks=[], nodes="", reason=found.reason)
        if found.ends:
            self.record.mark("hung")
            child.terminate()  # on TERM, srun kills the step
        return not found.ends

    def _look_for_hang(self) -> bool:
        if self._has_hang():
            self.children.fork(self.send_hang)
        return not self._has_hang()

    def send_hang(self) -> bool:
        """Sends a message about a hang if a hang is reported. Returns whether a hang is reported."""
        if self._has_hang():
            self.notify.send("hang", "hung", self.job.attempt, {})
        return self._has_hang()

    def _has_hang(self) -> bool:
        return os.path.exists(self.job.file("hang.txt"))


def with_logs(step: Sequence[str], logs: str) -> List[str]:
    """Replaces {logs} by a folder, but only in srun's own options, in which % begins a pattern."""
    words = list(step)
    for i, word in enumerate(words[1:], 1):
        if not word.startswith("-"):
            break
        words[i] = word.replace("{logs}", logs.replace("%", "%%"))
    return words
