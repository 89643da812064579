"""Step: the srun command of the ranks, from its start to its end, and what is watched meanwhile."""

import os
import subprocess
from typing import IO, Callable, List, Optional, Sequence

from . import slurm
from .children import Children, end, exit_code
from .ending import Ending
from .job import Job
from .notify import Notify
from .policy import exhausted
from .record import Record
from .rules import Rules
from .silence import Silence
from .texts import warn, warn_of_fault, words

LINGERING_S = 300
HANG_S = 60
FINAL = ("done", "stop", "overtaken")


class Watch:
    """Looks every so many seconds; `look` returns whether it is to look again."""

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
    def __init__(
        self, job: Job, rules: Rules, record: Record, notify: Notify, ending: Ending, children: Children
    ) -> None:
        self.job = job
        self.rules = rules
        self.record = record
        self.notify = notify
        self.ending = ending
        self.children = children
        self._agreed = False

    def run(self, words: Sequence[str], out: Optional[IO[bytes]] = None, watched: bool = True) -> int:
        """Runs these words to their end, and acts on TERM meanwhile; the exit code."""
        try:
            child = self.children.start(words, out)
        except OSError as error:
            warn("{}: {}".format(words[0], error.strerror))
            return 127
        watches = self._watches(child) if watched else []
        try:
            while child.poll() is None:
                timers = [watch.timer for watch in watches if watch.timer is not None]
                self.children.wait([child, *timers], self.children.has_news)
                try:
                    if self.children.take_news():
                        self.on_term()
                    for watch in watches:
                        watch.poll()
                except Exception as error:
                    warn_of_fault(error, "The step goes on.")
        finally:
            for watch in watches:
                watch.end()
        return exit_code(child)

    def _watches(self, child: "subprocess.Popen[bytes]") -> List[Watch]:
        found = []
        if self.rules.kind == "entry":
            found.append(Watch(self.children, LINGERING_S, lambda: self._end_lingering(child)))
        if self.rules.silence_s:
            silence = Silence(self.rules, self.job.logs, self.children)
            found.append(Watch(self.children, silence.pause_s, lambda: self._look_at_silence(silence, child)))
        if "hang" in self.rules.notify:
            found.append(Watch(self.children, HANG_S, self._look_for_hang))
        return found

    def on_term(self) -> None:
        """TERM comes at scancel, at a requeue, at the time limit, and at a preemption without grace time."""
        if self.ending.requeued:
            return
        look = self.ending.look()
        # At the time limit only this program requeues, and KILL comes soon: do it first.
        is_ours = self.rules.requeue and look.state == slurm.TIME_LIMIT and not self._is_final()
        if is_ours and not exhausted(self.ending.history, "timeout", self.rules, 1):
            self.ending.requeue("timeout", look)
        self.record.event("signal", name="TERM")

    def _is_final(self) -> bool:
        """Whether the ranks or the user have ended the run."""
        word = "".join(words(self.job.file("outcome"))[:1])
        return self.job.is_marked("cancelled") or self.job.is_marked("stop") or word in FINAL

    def _end_lingering(self, child: "subprocess.Popen[bytes]") -> bool:
        """If srun has not ended minutes after the ranks left their outcome: the slurmstepd of its step was killed, or a
        rank cannot exit. Slurm notices when the node registers again, in half an hour, or at the time limit."""
        if not self._agreed:
            self._agreed = os.path.exists(self.job.file("outcome"))
            return True
        warn("the ranks have left their outcome, and srun has not ended for 5 minutes. Ending it.")
        child.terminate()
        return False

    def _look_at_silence(self, silence: Silence, child: "subprocess.Popen[bytes]") -> bool:
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
            child.terminate()  # srun kills the step
        return not found.ends

    def _look_for_hang(self) -> bool:
        if self._has_hang():
            self.children.fork(self.send_hang)
        return not self._has_hang()

    def send_hang(self) -> bool:
        """Sends a message about a hang if one is reported; whether it is."""
        if self._has_hang():
            self.notify.send("hang", "hung", self.job.attempt, {})
        return self._has_hang()

    def _has_hang(self) -> bool:
        return os.path.exists(self.job.file("hang.txt"))
