"""ThisAttempt: one attempt of a job, from its start to the decision after its end."""

import os
import re
import time
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple

from .act.check_nodes import check_nodes
from .act.ending import Ending, drop_folders, wait_for_room
from .act.failure import after_failure, has_own_error, has_taken_port, last_words
from .act.reserve import Reserve
from .act.step import Step
from .decide.attempts import Attempt, last_notice_before, read_attempts, rival
from .decide.decisions import Decision, End, Leave, Requeue, Start
from .decide.end import ASKS_AGAIN, Ended, by_nodes, by_slurm, by_the_ranks
from .decide.evidence import ASKED, BY_CGROUP, code_of, first_to_exit, without_kills
from .decide.history import History, history_of, step_to_begin_at
from .decide.policy import failed_nodes, may_start, not_in_place, restarts_in_place
from .decide.predecessors import Verdict, judge
from .files.job import BEGAN, EXPORTED, Job
from .files.record import Record
from .files.rules import Rules
from .files.texts import LAST, number, read, size, warn, words
from .nodes import environment
from .nodes.copies import Copies, write_limit_s
from .nodes.keepers import BLAMED_S, SILENT_S, Keepers
from .nodes.placement import Placement
from .nodes.rendezvous import Ports, address_of, first_host, fork_server, times_of
from .processes import slurm
from .processes.children import Children
from .processes.notify import Notify
from .processes.slurm import Look, Slurm

STILL_THERE = "Timed out waiting for job step to complete"  # srun gives up a task that KILL does not end
LATE_S = (0, 1, 2, 4, 8, 15)  # seconds before each look at the outcome, because a shared file system may show it late


class Setup(NamedTuple):
    """The result of launch.setup. failed: the line whose failure ends the attempt, with exit code `code`. errors: all
    lines that failed."""

    failed: str = ""
    code: int = 0
    errors: str = ""


class ThisAttempt:
    def __init__(
        self,
        job: Job,
        rules: Rules,
        children: Children,
        keepers: Optional[Keepers] = None,
        placement: Optional[Placement] = None,
        reserve: Optional[Reserve] = None,
    ) -> None:
        self.job = job
        self.rules = rules
        self.children = children
        self.slurm = Slurm(children, job)
        self.record = Record(job)
        self.notify = Notify(job, rules, self.record, children)
        self.ending = Ending(job, rules, self.record, self.notify, children, self.slurm)
        self.placement = placement or Placement(job, rules, self.slurm)
        self.step = Step(job, rules, self.record, self.notify, self.ending, children, self.placement)
        self.keepers = keepers or Keepers(job, rules, children)
        self.copies = Copies(job, rules, children, self.keepers)
        self.reserve = reserve or Reserve(rules, children)
        self.step.keepers, self.step.reserve = self.keepers, self.reserve
        self.ending.on_leaving = self._leave
        self.setup = Setup()
        self.address = job.host
        self.took_s = 0
        self.from_step: Optional[int] = None  # the step to which the ranks go back
        self._has_ranks = False  # whether ranks of this attempt may be alive
        self._output_began = size(job.output(job.log_id))

    # -- the start --

    def start(self, awake: str, setup: Setup) -> None:
        """Returns when the step may start; if it may not start, exits. awake: start of the script in seconds since
        1970."""
        self.setup = setup
        wait_for_room(self.ending)
        other = rival(self.job, self.slurm) if self.rules.kind != "entry" and not self.job.life else ""
        if other:  # an entry's ranks have a claim, by which the newest attempt has the run
            self._give_way(other)
        attempts = read_attempts(self.job, self.rules, self.record, self.slurm)
        is_cancelled = self.job.is_marked("cancelled") or self._was_cancelled()
        if not is_cancelled:
            self._announce(attempts)
        self.from_step = step_to_begin_at(self.rules.from_step, attempts)
        history = history_of(attempts, self.job.id)
        if isinstance(history, End):
            self.ending.over(history)
        self.ending.history = history
        self._record_start(awake)
        start = may_start(history, self.rules, is_cancelled, self.job.is_marked("stop"), time.time())
        if isinstance(start, End):
            self.ending.over(start)
        assert isinstance(start, Start)
        if self.rules.after and not history.ended and not self.job.life:
            self._look_at_predecessors()
        self._avoid_bad_nodes()
        self._wait(start)
        if history.links < self.rules.chain and not self.job.life:
            self.ending.link()

    def _look_at_predecessors(self) -> None:
        """Returns if the runs that this run follows are where it waits for them. Else this attempt ends: a later job
        takes the run, or the run is over."""
        verdict = Verdict()
        for pause in LATE_S:
            self.children.sleep(pause)
            verdict = judge(self.rules.after, self.job, self.slurm)
            if not verdict.is_unclear:
                break
        if verdict.never:
            said = "{}; not starting. `clusterdp resume {{run}}` looks again.".format(verdict.never)
            self.ending.over(End.gave_up(verdict.never, said))
        if verdict.goes_on:
            self.ending.start_later(verdict.goes_on)

    def _give_way(self, other: str) -> NoReturn:
        """Exits without a record, because the run's records are those of the job that runs."""
        said = "job {0} runs the program of {1}. Job {2} ends, because both would write into the same files."
        warn(said.format(other, self.job.run, self.job.id) + " `scancel {}` first.".format(other))
        drop_folders(self.job)
        raise SystemExit(4)

    def _was_cancelled(self) -> bool:
        """Returns whether the attempt before this one was cancelled. Slurm accepts a requeue just after a scancel and
        brings the job back. Slurm also starts a job of a chain (see resubmit) when the previous job of the chain is
        cancelled."""
        if self.job.life:
            return False
        if self.job.replaces and self.slurm.was_cancelled(self.job.replaces):
            return True
        # Only the notice of a scancel lacks "DUE TO ...", or has "DUE to SIGNAL" (since Slurm 26.05). (sacct shows
        # REQUEUED for such an attempt.)
        notice = last_notice_before(self.job)
        return notice is not None and notice.cause == "cancelled"

    def _announce(self, attempts: Sequence[Attempt]) -> None:
        """Sends messages about requeues that no attempt has recorded. The ranks do not wait for the messages."""
        news = [attempt for attempt in attempts if attempt.is_news]
        if news and self.rules.notify:
            self.children.fork(lambda: self._send(news))

    def _send(self, news: Sequence[Attempt]) -> None:
        for attempt in news:
            self.notify.send("requeued", attempt.cause, attempt.name, {})

    def _record_start(self, awake: str) -> None:
        job, environ = self.job, os.environ
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        self.record.note("began", "{:d} {} {} {}".format(int(time.time()), stamp, job.restart, job.nodes))
        gpus = (number(environ.get("SLURM_GPUS_ON_NODE", "")) or 0) * (job.node_count - len(self.placement.gone))
        when = float(awake.replace(",", ".")) if re.match("[0-9]+[.,]?[0-9]*$", awake) else time.time()
        cpus = self.placement.without_gone(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        about: Dict[str, Any] = {"job": job.id, "restart": job.restart, "awake": when, "cpus": cpus, "gpus": gpus}
        about.update(partition=job.partition, account=environ.get("SLURM_JOB_ACCOUNT", ""))
        about.update({"most_nodes": self.rules.sizes[-1]} if self.rules.sizes else {})
        self.record.event("started", nodes=self.placement.text, **about)
        self.record.note("setup", self.setup.errors)
        if self.setup.failed:
            warn("{}. The program is not started.".format(self.setup.failed))
            self.record.note("error", "{}\n\n{}".format(job.host, self.setup.failed))

    def _avoid_bad_nodes(self) -> None:
        """Starts no ranks on nodes that the run avoids, if there are spare ones, or a range of nodes. Else the job goes
        back into the queue, but only once in a row: the next attempt runs on any nodes. (Slurm requeues a job by
        itself, too.)"""
        history = self.ending.history
        if not history.bad or self.job.life:
            return
        excluded, nodes = self.ending.excluded(), self.slurm.expand(self.job.nodes)
        bad = [node for node in nodes if node in excluded.split(",")]
        try:
            if bad and self.placement.replace(bad, nodes):
                self.record.event("placed", nodes=self.placement.text)
        except LookupError:
            if history.moved:
                return
            warn("this job has a node that the run avoids ({}): it goes back into the queue.".format(excluded))
            if not self.ending.requeue("bad-node", self.ending.look()):
                raise SystemExit(0) from None

    def _wait(self, start: Start) -> None:
        """Sleeps for the rest of a pause within the allocation, if Slurm has started the job too early."""
        if not start.wait_s:
            return
        warn(start.said)
        is_over = self.children.sleep(
            start.wait_s, lambda: self.job.is_marked("cancelled") or self.job.is_marked("stop")
        )
        if not is_over or self.job.life:  # between two steps, no signal reports a preemption
            self._act_on_end_of_wait()

    def _act_on_end_of_wait(self) -> None:
        again = may_start(
            self.ending.history, self.rules, self.job.is_marked("cancelled"), self.job.is_marked("stop"), time.time()
        )
        if isinstance(again, End):
            self.ending.over(again)
        look = self.ending.look()
        if look.state in (slurm.PREEMPTED, slurm.TIME_LIMIT):
            self._follow(by_slurm(Ended(1, 0), look.state, self.ending.history, self.rules)[0], look, 1)
        if look.state != slurm.RUNNING:
            self.ending.leave(look.state, 1)

    # -- the step --

    def meet(self) -> None:
        """Sets the ranks' environment: the address and the port at which they meet, and the other variables."""
        job, rules = self.job, self.rules
        now = time.time()
        ends, queued, began = times_of(job, self.slurm, os.environ.get("SLURM_JOB_END_TIME", ""), now)
        if queued is not None and began is not None:
            self.record.event("queued", since=queued, until=began)
        url = rules.checkpoint_url or os.path.join(job.run, "checkpoints")
        if rules.checkpoint_url and rules.is_sweep:
            url = "{}/{}".format(rules.checkpoint_url, os.path.basename(job.run))
        self.children.export(
            CLUSTERDP_JOB_END_TIME="" if ends is None else ends,
            CLUSTERDP_RUN_DIR=job.run,
            CLUSTERDP_CHECKPOINT_URL=url,
        )
        self.copies.export(url)
        self.ports = Ports(job, job.host)
        self._meet_at_first()
        self._export_names()

    def _meet_at_first(self) -> None:
        self.address = address_of(first_host(self.placement.text), self.slurm)
        self.ports.address = self.address
        self.children.export(MASTER_ADDR=self.address)

    def _export_names(self) -> None:
        """Sets the variables that differ between two attempts in one allocation."""
        self.children.export(
            MASTER_PORT=self.ports.next(),
            CLUSTERDP_ATTEMPT=self.job.attempt,
            CLUSTERDP_LOGS=self.job.logs,
            CLUSTERDP_RESUME_STEP=self.from_step,
            CLUSTERDP_FORK_SERVER=fork_server(self.rules, self.job),
        )

    def exported(self) -> List[Tuple[str, str]]:
        """Returns the variables that the ranks get from this program, and those that came_back() reads."""
        environ = self.children.environ
        found = [(name, os.fsdecode(environ[os.fsencode(name)])) for name in EXPORTED if os.fsencode(name) in environ]
        return [*found, (BEGAN, "{:d} {}".format(int(time.time()), self._output_began))]

    def came_back(self, setup: Setup, code: int, has_term: bool) -> int:
        """Returns the exit code of a step that another process has run. has_term: whether TERM came while the step
        ran."""
        self.setup = setup
        began, self._output_began = (number(word) or 0 for word in os.environ[BEGAN].split())
        self.took_s = int(time.time()) - began
        self.address = os.environ.get("MASTER_ADDR", self.address)
        history = history_of(read_attempts(self.job, self.rules, self.record, self.slurm), self.job.id)
        self.ending.history = history if isinstance(history, History) else History()
        if has_term:
            self.step.on_term()
        return code

    def check_nodes(self) -> None:
        """Runs launch.preflight. Returns when the ranks may start."""
        if self.rules.preflight and not self.setup.failed:
            check_nodes(self.ending, self.step, lambda: self.children.export(MASTER_PORT=self.ports.next()))
            if self.placement.lost:
                self._meet_at_first()
                self.children.export(MASTER_PORT=self.ports.next())

    def run(self, words: Sequence[str]) -> int:
        """Runs the step to its end. Returns its exit code."""
        began, suspended_s = time.monotonic(), self.children.suspended_s
        code = self.setup.code
        self._has_ranks = True
        if not self.setup.failed:
            code = self.step.run(words)
            if code and not self.ending.requeued and has_taken_port(self.job.logs):
                # The port was free when it was probed, and is taken now: the step starts once more, with the next port.
                port = self.ports.next()
                self.children.export(MASTER_PORT=port)
                warn("the port was taken; once more with {}.".format(port))
                code = self.step.run(words)
        self.took_s = int(time.monotonic() - began - self.children.suspended_s + suspended_s)
        return code

    def restarted(self) -> "ThisAttempt":
        """Returns the next attempt in this allocation, which may start its step. If it may not start, exits. It meets
        at another port, because ranks of this attempt may still be alive."""
        after = ThisAttempt(self.job.after, self.rules, self.children, self.keepers, self.placement, self.reserve)
        after.ports, after.address, after._has_ranks = self.ports, self.address, self._has_ranks
        after.start(str(time.time()), self.setup)
        if self.placement.lost:
            after._meet_at_first()
        after._export_names()
        if self.children.take_news():  # a TERM that has come since the last look at the job
            after._act_on_end_of_wait()
        return after

    # -- the end --

    def finish(self, code: int) -> None:
        """Returns if the next attempt follows in this allocation; else exits."""
        job, ending = self.job, self.ending
        said = without_kills(read(job.output(job.log_id), LAST, self._output_began))
        self._has_ranks = self._have_ranks_outlived(said)
        if self.step.has_killed:  # srun's exit code is now that of the killed tasks
            code = code_of(self.step.first) or code
        if self.rules.kind != "entry" and code > 128 and first_to_exit(said) == ASKED:
            code = ASKS_AGAIN  # one rank exited with 75, and srun exits with the signal that killed the others
        self.record.note("exit", "{} {} {}".format(code, self.took_s, int(time.time())))
        if not ending.is_replaced():
            self.record.event("exited", exit=code)
        ended = self.ended(code)._replace(has_kills=bool(BY_CGROUP.search(said)))
        self.notify.step = ended.step
        for final in by_the_ranks(ended):
            ending.over(final)
        if ending.requeued:
            self._leave()
            raise SystemExit(0)
        ending.over_if_marked()  # at a stop, a program of the user may save and exit with 0
        look = ending.look()
        for decision in by_slurm(ended, look.state, ending.history, self.rules):
            self._follow(decision, look, code)
        ends = last_words(job.logs)
        lost = self._lost(said, ends)
        if lost:
            ending.avoid("node-lost", lost)
            decision = by_nodes(lost, ended, ending.history, self.rules)
        else:
            hosts = [job.host, os.uname().nodename, self.address]
            decision = after_failure(ending, ended, said, ends, self.placement.text, hosts)
        if not isinstance(decision, Requeue) or not self._may_restart(decision.cause, ended, look, said, lost):
            self._follow(decision, look, code)
        try:
            replaced = self._replaced(lost, look)
        except LookupError as error:
            warn("no restart in place: {}.".format(error))
            self._follow(decision, look, code)
        ends_at = "" if look.ends_at is None else int(look.ends_at)  # an administrator may have changed it
        self.children.export(CLUSTERDP_JOB_END_TIME=ends_at)
        ending.restart(decision, replaced, self.placement.size)

    def _have_ranks_outlived(self, said: str) -> bool:
        """Returns whether ranks may still act after the end of their step. Those that srun gives up have not ended at
        KILL: the kernel lets them run no more code, and the copies in memory can be written."""
        if STILL_THERE in said:
            self.keepers.kill(self.job.attempt, self.job.after.attempt)
        return bool(self.step.lost)

    def _lost(self, said: str, ends: Mapping[str, str]) -> List[str]:
        """Returns the nodes that srun has lost, or because of which the step was ended. ends: the last bytes of each
        log."""
        failed = failed_nodes(said)
        if "[" in "".join(failed):
            failed = self.slurm.expand(",".join(failed)) or failed
        if not failed and self.job.node_count > 1:
            # A rank that has lost its peers may end before they are named, and with an error that looks like its own.
            seconds = BLAMED_S if has_own_error(ends) else SILENT_S
            silent = self.keepers.settled(self.record, seconds, self.placement.wordless(said))
            failed = [node for node in silent if node in (self.placement.nodes or silent)]
        return sorted({*failed, *self.step.lost})

    def _leave(self) -> None:
        """Avoids nodes that are silent, and writes a newer copy of the state to the disk, unless ranks are alive, or
        another attempt has the run. Called before the job leaves its nodes."""
        self.reserve.close()
        if not self.ending.is_replaced():
            self.ending.avoid("node-lost", self.keepers.blamed(self.record))
        if self._has_ranks:
            return
        environment.remove(self.rules, self.slurm, self.job.node_count - len(self.placement.gone))
        if not self.ending.is_replaced():
            self._write_copy()
        self.keepers.close()  # first, because Slurm's requeue would cancel their step

    def _write_copy(self) -> None:
        """Writes a newer copy of the state to the disk. Rank 0's keeper has the manifest."""
        if self.placement.nodes[:1] not in ([], [self.job.host]):
            return
        self.copies.write(
            self.record,
            lambda: write_limit_s(self.slurm.glance(), self.job.is_marked("cancelled")),
            lambda: not self.ending.requeued and self.children.has_news(),
        )

    def _may_restart(self, cause: str, ended: Ended, look: Look, said: str, lost: Sequence[str]) -> bool:
        """Returns whether the next attempt may start in this allocation. Prints the reason if only this attempt forbids
        it."""
        if look.state != slurm.RUNNING or ended.in_setup or not restarts_in_place(cause, self.rules):
            return False
        start = "{}.{}".format(self.job.id, self.job.restart)
        left_s = None if look.ends_at is None else look.ends_at - time.time()
        why = not_in_place(cause, start, ended.saved, self.ending.history, self.rules, left_s)
        if not lost and ended.code in (126, 127):
            why = "this node lacks the program"
        elif not lost and (not self.step.first or STILL_THERE in said):
            why = "srun has named no task that has failed, so tasks may live on"
        if why:
            warn("no restart in place: {}.".format(why))
        return not why

    def _replaced(self, lost: Sequence[str], look: Look) -> Dict[str, str]:
        """Returns the nodes that have no ranks any more, because they are lost, silent, or bad for Slurm, each with its
        spare node, if it has one. Raises LookupError if the ranks cannot start again without them."""
        blamed = self.keepers.blamed(self.record)
        down = self.slurm.down_nodes(self.job.nodes, "down,drain,fail,no_respond,unknown")
        bad = sorted({*lost, *blamed, *down})
        if not bad and not self.placement.nodes:
            return {}
        left = sorted(self.slurm.expand(look.nodes), key=self.keepers.silent.count)  # silent nodes come last
        self.ending.avoid("node-lost", blamed)
        replaced = self.placement.replace(bad, left)
        self.placement.gone = {*self.placement.gone, *lost, *blamed}.union(set(self.placement.all).difference(left))
        if replaced:
            self.reserve.close(0)
            self.keepers.kill(self.job.attempt, self.job.after.attempt)
        self.keepers.forget(self.placement.lost, left)
        if "" in replaced.values():  # fewer ranks restore a checkpoint on the disk, which all of them can read
            self._write_copy()
            self.keepers.drop()
        return replaced

    def ended(self, code: int) -> Ended:
        """Returns how the step has ended, with this exit code."""
        path = self.job.file("outcome")
        for pause in LATE_S if self.rules.kind == "entry" else ():
            if os.path.exists(path) or (code and pause):
                break
            self.children.sleep(pause)
        word, reason, step = ([*words(path), "", "", ""])[:3]
        reason = "grown" if self.step.grows and reason == "time" else reason
        return Ended(code, self.took_s, word, reason, number(step) or 0, self.job.has_saved(), bool(self.setup.failed))

    def _follow(self, decision: Decision, look: Look, code: int) -> NoReturn:
        if isinstance(decision, End):
            self.ending.over(decision)
        if isinstance(decision, Requeue):
            self.ending.requeue_or_leave(decision, look, code)
        assert isinstance(decision, Leave)
        self.ending.leave(look.state, decision.code)
