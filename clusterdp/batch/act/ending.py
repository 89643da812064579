"""Ending: records how this attempt ends, and carries out the decision: the run is over, left to others, or requeued."""

import os
import time
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Sequence

from ..decide.decisions import End, Requeue
from ..decide.history import History
from ..decide.policy import CANCELLED, HELD_S, avoided, pause_s
from ..decide.predecessors import follower_jobs
from ..files.job import Job
from ..files.record import Record
from ..files.rules import Rules
from ..files.texts import size, warn, warn_of_fault, words
from ..nodes.placement import places
from ..processes import slurm
from ..processes.children import Children
from ..processes.notify import Notify
from ..processes.slurm import Look, Slurm

ROOM_S = 600
USABLE_S = 60.0  # seconds for which an answer about the nodes is used again
TRIES_S = (0, 1, 2, 5, 10, 20, 40)  # seconds of pause before each try


class Ending:
    """requeued: the cause of the requeue, set when one more attempt is sure to follow. once: a node that only the next
    attempt avoids. is_resubmitted: whether a new job replaces this one, because the site forbids requeue."""

    def __init__(
        self, job: Job, rules: Rules, record: Record, notify: Notify, children: Children, slurm: Slurm
    ) -> None:
        self.job = job
        self.rules = rules
        self.record = record
        self.notify = notify
        self.children = children
        self.slurm = slurm
        self.history = History()
        self.requeued = ""
        self.once = ""
        self.on_leaving: Callable[[], None] = lambda: None  # called before the job leaves its nodes
        self.is_resubmitted = False
        self._successor = ""
        self._usable: List[str] = []
        self._usable_at = -USABLE_S

    def is_replaced(self) -> bool:
        """Returns whether a later attempt has recorded the end of this attempt, and so has taken over the run."""
        return not self.requeued and size(self.job.file("cause")) > 0

    def look(self) -> Look:
        return Look(slurm.REQUEUED) if self.is_replaced() else self.slurm.look()

    def over(self, end: End) -> NoReturn:
        """Records how this attempt ended, and exits. No other attempt follows."""
        self.on_leaving()
        if self.is_replaced():
            self.leave(slurm.REQUEUED, end.code)
        if end.said:
            warn(self._filled(end.said), 2 if end.code else 1)
        self.record.note("cause", end.cause)
        if self.rules.chain:
            successor = self._waiting()
            if successor:
                self.slurm.cancel(successor)  # the next job of the chain would find that the run is over
        self.record.event(end.event, cause=end.cause, **end.details)
        self._send(end.event, end.cause, end.details)
        raise SystemExit(end.code)

    def leave(self, state: str, code: int) -> NoReturn:
        """Exits without recording an end, because another attempt or Slurm records it."""
        self.on_leaving()
        if state == slurm.REQUEUED:
            words = "job {} has been requeued: attempt {} no longer acts for it."
            warn(words.format(self.job.id, self.job.attempt))
            self._ask_for_least()
        else:  # the job was cancelled, which Slurm has on record
            self.record.event("signal", name="ending", exit=code)
        raise SystemExit(code)

    def requeue_or_leave(self, decision: Requeue, look: Look, code: int) -> NoReturn:
        if decision.said:
            warn(self._filled(decision.said))
        if decision.details is not None:
            self.record.event("failed", cause=decision.cause, **decision.details)
        state = self.requeue(decision.cause, look)
        if state:
            self.leave(state, code)
        raise SystemExit(0)

    def restart(self, decision: Requeue, replaced: Mapping[str, str], size: int) -> None:
        """Records that one more attempt follows in this allocation. replaced: the nodes that have no ranks any more,
        each with its spare node, if it has one. size: the number of nodes with ranks."""
        where = places(replaced, size)
        warn("{}; the next attempt starts {}".format(self._filled(decision.said).rstrip("."), where))
        if decision.details is not None:
            self.record.event("failed", cause=decision.cause, **decision.details)
        # Before the note, because a `failed` without it would end the run if this node were lost between the two.
        spare = ",".join(filter(None, replaced.values()))
        about: Dict[str, Any] = {"spare": spare} if spare else {}
        if "" in replaced.values():
            about["size"] = size
        self.record.event("restarted", cause=decision.cause, of=self.job.attempt, **about)
        self.record.note("cause", decision.cause)
        if self.rules.notify:
            try:
                self.children.fork(lambda: self._send("restarted", decision.cause, {"where": where}))
            except OSError as error:
                warn("notify: a message is lost: {}.".format(error.strerror))

    def requeue(self, cause: str, look: Look) -> str:
        """Requeues the job. Returns "" if one more attempt follows. If the job's state forbids a requeue, returns the
        state.

        A successful requeue sends TERM to this process, and KILL after KillWait."""
        if not self.rules.requeue and not self.job.is_marked("cancelled"):
            words = "stopped ({}), and restart.requeue is false. `clusterdp resume {}` goes on."
            warn(words.format(cause, self.job.run))
            self.over(End(cause, "failed", 75))
        self.on_leaving()
        if self.children.has_news():  # a TERM has come meanwhile: the job may have been cancelled
            look = self.look()
        said = ""
        for pause in TRIES_S:
            self.children.sleep(pause)
            if pause:
                look = self.look()  # the job may have been cancelled meanwhile
            self.over_if_marked()
            if look.state == slurm.REQUEUED:
                self.requeued = cause  # the last try has worked, and only Slurm's answer was lost
            elif look.state not in slurm.GOES_ON:
                return look.state
            else:
                said = self._try(cause)
            if self.requeued:
                self._goes_on(cause, look)
                return ""
        warn("COULD NOT REQUEUE job {}: {}".format(self.job.id, said))
        warn("nothing is lost; go on with `clusterdp resume {}`.".format(self.job.run))
        return self.over(End(cause, "failed", 75, {"requeue": "refused"}))

    def start_later(self, jobs: str) -> NoReturn:
        """Gives the run to a new job, which begins when the jobs are over that the run follows."""
        warn("the run before this one goes on in another job: this run starts after it ({}).".format(jobs))
        if not self.resubmit("submitted", jobs):
            why = "it started before the run that it follows was over, and sbatch has refused the next job"
            self.over(End.gave_up(why, why + "; `clusterdp resume {run}` goes on with it."))
        self.record.note("cause", "early")
        self.record.event("requeued", cause="early", of=self.job.attempt)
        raise SystemExit(0)

    def over_if_marked(self) -> None:
        if self.job.is_marked("cancelled"):
            self.over(CANCELLED._replace(said=""))
        if self.job.is_marked("stop"):
            self.over(End.by_user())

    def _try(self, cause: str) -> str:
        """Tries once to requeue. Sets `requeued` and returns "", or returns the text of Slurm's refusal."""
        if self.rules.how == "resubmit":
            if not self.resubmit("submitted"):
                return "sbatch has refused the next one"
        else:
            answer = self.slurm.requeue()
            is_quicker = slurm.IS_QUICKER.search(answer.said)  # Slurm has requeued the job itself
            is_forbidden = slurm.IS_FORBIDDEN.search(answer.said)  # this site forbids requeue
            if answer.code and not is_quicker and not (is_forbidden and self.resubmit("submitted")):
                return answer.said
        self.requeued = cause
        return ""

    def _goes_on(self, cause: str, look: Look) -> None:
        self.record.note("cause", cause)
        self.record.event("requeued", cause=cause, of=self.job.attempt)
        # This call comes after the requeue, because Slurm (22.05 to 26.05) cannot change ExcNodeList of a running job.
        excluded, now = self.excluded(), self.rules.exclude if self._successor else look.excluded
        if excluded != now:
            self.slurm.exclude(self._successor or self.job.id, excluded)
        self._ask_for_least()
        wait_s = pause_s(self.history.with_end(cause, 0, self.job.has_saved()), cause, self.rules, 0, 0)
        if wait_s > (0 if self._successor else HELD_S):  # an earlier start time would shorten Slurm's own pause
            self.slurm.begin_later(self._successor or self.job.id, wait_s)
            if not self._successor:
                self.children.detach(lambda: self.slurm.begin_later_when_pending(time.monotonic() + wait_s))
        self._send("requeued", cause, {})

    def _ask_for_least(self) -> None:
        """Lets a requeued job with a range of nodes start with the least of them, whatever it had (Slurm 22.05)."""
        least = self.rules.job_nodes * self.rules.tasks_per_node
        if self.rules.sizes and not self._successor and self.slurm.glance().tasks > least:
            self.slurm.set_tasks(least)

    def _send(self, event: str, cause: str, details: Mapping[str, Any]) -> None:
        try:
            self.notify.send(event, cause, self.job.attempt, details)
        except Exception as error:
            warn_of_fault(error, "A message is lost.")

    # -- a chain of jobs --

    def resubmit(self, event: str, after: str = "") -> bool:
        """Submits a new job of the same chain, which begins when this job is over, and those that `after` names. Does
        nothing if such a job is already waiting."""
        new = self._waiting()
        if not new:
            options = ["--array=" + self.job.element] if self.job.element else []
            variables = {
                "CLUSTERDP_CHAIN": self.job.chain,
                "CLUSTERDP_REPLACES": "{}:{}".format(self.job.id, self.job.log_id),
                "CLUSTERDP_UNWRITTEN": str(self.job.unwritten),
            }
            code, new = self.slurm.submit(self.job.script, options, variables, after)
            if code:
                new = self._waiting()  # sbatch may have submitted the job although its answer was lost
                if not new:
                    return False
            elif new:
                new = self._with_index(new)
        if new:
            self.record.event(event, job=new)
        for follower in follower_jobs(self.job.run) if new and event == "submitted" else ():
            self.slurm.wait_also_for(follower, new)  # else it would begin when this job is over
        self._successor, self.is_resubmitted = new, True
        return True

    def link(self) -> None:
        """Submits the next job of the chain, which waits in the queue while this one runs."""
        if not self.resubmit("linked"):
            warn("restart.chain: the next job could not be submitted; it will be when this one ends.")
        self._successor, self.is_resubmitted = "", False

    def _waiting(self) -> str:
        new = self.slurm.waiting(self.job.script)
        return self._with_index(new) if new else ""

    def _with_index(self, number: str) -> str:
        return number + "_" + self.job.element if self.job.element else number

    # -- nodes --

    def excluded(self) -> str:
        """Returns the value of ExcNodeList for the next attempt."""
        wanted = [self.once] if self.once else []
        # The oldest bad nodes come last, because avoided() drops the last ones first if too few usable nodes would
        # remain.
        wanted += words(self.job.file("avoid")) + list(self.history.bad)
        if not wanted:
            return self.rules.exclude
        usable = self.usable_nodes()
        if not usable:  # Slurm has not answered
            return self.rules.exclude
        must = self.slurm.expand(self.rules.nodelist)
        return avoided(wanted, usable, self.rules.job_nodes, self.rules.exclude, must)

    def usable_nodes(self) -> List[str]:
        if time.monotonic() - self._usable_at > USABLE_S:
            self._usable, self._usable_at = self.slurm.usable_nodes(self.rules.exclude), time.monotonic()
        return self._usable

    def avoid(self, cause: str, names: Sequence[str]) -> None:
        """Records nodes that later attempts avoid, if the policy for this cause has `avoid`."""
        known = words(self.job.file("avoid"))
        if set(names) - set(known) and self.rules.policy(cause).avoid:
            self.record.note("avoid", " ".join(dict.fromkeys([*known, *names])))

    def _filled(self, said: str) -> str:
        return said.replace("{run}", self.job.run).replace("{logs}", self.job.logs)


def wait_for_room(ending: Ending) -> None:
    """Waits for room on a full disk, because without room this attempt could neither save nor leave a record for the
    next attempt."""
    job, waited_s = ending.job, 0
    while True:
        said = _make_folders(job)
        if not said:
            return
        if waited_s >= ROOM_S:
            break
        words = "cannot write to {}: {}. Trying again for {} minutes."
        warn(words.format(job.run, said, (ROOM_S - waited_s) // 60))
        if not ending.children.sleep(60):
            break
        waited_s += 60
    # An attempt without room counts as a crash, but no file can record the crash. Therefore restarts without a folder
    # are counted instead.
    ours = [name for name in job.attempts() if name.startswith(job.id + ".")]
    written = sum(name.count(".") == 1 and size(os.path.join(job.folder_of(name), "chain")) > 0 for name in ours)
    unwritten = job.unwritten - written + job.restart + 1
    ending.job = ending.job._replace(unwritten=unwritten)
    words = "cannot write to {}: {}. See who owns it, and whether its disk is full."
    warn(words.format(job.run, said))
    if unwritten <= ending.rules.max_crashes and not ending.requeue("disk", ending.look()):
        raise SystemExit(0)
    raise SystemExit(4)


def _make_folders(job: Job) -> str:
    """Creates this attempt's folders. Returns the error text if this fails; empty if all folders exist."""
    try:
        for folder in (job.logs, os.path.join(job.run, "events")):
            os.makedirs(folder, exist_ok=True)
        with open(job.file("chain"), "wb") as file:
            file.write(os.fsencode(job.chain + "\n"))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def drop_folders(job: Job) -> None:
    """Removes the folders of an attempt that has recorded nothing."""
    try:
        os.unlink(job.file("chain"))
        os.rmdir(job.logs)
        os.rmdir(job.here)
    except OSError:
        pass
