"""notify: messages to people about an end, a failure, a requeue or a hang. A message takes 10 s at most, and has no
effect on the job."""

import json
import os
import signal
import subprocess
from typing import Any, Mapping, Optional, Sequence

from ..files.causes import CAUSES, FAULTS
from ..files.job import Job
from ..files.record import Record
from ..files.rules import Rules
from ..files.texts import as_bytes, lines, read, warn
from .children import Answer, Children, end, exit_code, term_blocked

MOST_S = 10
LOOK_S = 0.2
END, FAILURE, REQUEUE, HANG = "end", "failure", "requeue", "hang"
SILENT = ("done", "cancelled", "overtaken", "stopped")  # no message: Slurm requeued the job of a run that is over


def event_of(event: str, cause: str, details: Mapping[str, Any], wanted: Any) -> str:
    """Returns the kind of event, a word of notify.on, for a line of the ledger; empty if no message is sent."""
    if event == "finished" or (event == "failed" and cause == "stopped" and details.get("reason") == "user"):
        found = END
    elif (event == "failed" and cause == "overtaken") or (event == "requeued" and cause in SILENT):
        return ""
    else:
        found = {"failed": FAILURE, "requeued": REQUEUE, "restarted": REQUEUE, "hang": HANG}.get(event, "")
    if cause == "hung" and found not in wanted:
        found = HANG  # the attempt ended before `watch` saw hang.txt
    return found if found in wanted else ""


def words_for(event: str, cause: str, details: Mapping[str, Any], rules: Rules, hang: str, step: int) -> str:
    """Returns the event as one line of text. hang: the first line of hang.txt. step: the number of the step; 0 if
    unknown."""
    what = CAUSES.get(cause, cause) + (" at step {}".format(step) if step else "")
    why, error, code = details.get("reason", ""), details.get("error", ""), details.get("exit")
    if event == END and cause == "stopped":
        return "stopped, as it was asked to" + (", at step {}".format(step) if step else "")
    if event == REQUEUE:
        where = details.get("where")
        again = "; it starts again {}".format(where) if where else "; it is requeued"
        return what if cause == "requeued" else what + again
    if event == HANG:
        return "hangs: " + hang
    if event != FAILURE:
        return what
    if cause == "stopped":
        return "failed: {}: a mistake in its config or code".format(what)
    if details.get("requeue") == "refused":
        return "failed: {}, and Slurm has refused to requeue it".format(what)
    if not details and not rules.requeue:
        return "failed: {}, and restart.requeue is false".format(what)
    if cause in FAULTS and not why:
        why = "restart.max_crashes allows no more than {}".format(rules.max_crashes)
    if error and error in why:
        error = ""
    said = "failed: " + what + (" (exit {})".format(code) if code is not None else "")
    return said + (": " + error if error else "") + ("; " + why if why else "")


class Notify:
    def __init__(self, job: Job, rules: Rules, record: Record, children: Children) -> None:
        self.job = job
        self.rules = rules
        self.record = record
        self.children = children
        self.step = 0  # number of the step in the ranks' outcome

    def send(self, event: str, cause: str, attempt: str, details: Mapping[str, Any]) -> None:
        """Sends a message about a line of the ledger if notify.on lists this kind of event. The end of a run is sent
        only once."""
        found = event_of(event, cause, details, self.rules.notify)
        about = self.job.chain if found in (END, FAILURE) else attempt
        if not found or not self._is_new("{} {} {}".format(about, found, cause)):
            return
        step = int(details.get("step") or (self.step if attempt == self.job.attempt else 0))
        hang = lines(os.path.join(self.job.folder_of(attempt), "hang.txt"))[0]
        what = words_for(found, cause, details, self.rules, hang, step)
        see = "why" if found in (HANG, FAILURE) else "status"
        text = "{} (job {}): {}\nclusterdp {} {}".format(self.rules.name, self.job.id, what, see, self.job.run)
        self._deliver(text, {
            "EVENT": found, "CAUSE": cause, "EXIT": details.get("exit", ""), "STEP": step or "",
            "NAME": self.rules.name, "RUN": self.job.run, "JOB": self.job.id, "TEXT": text,
        })  # fmt: skip
        self.record.event("told")  # this event makes the time of sending count as time of the attempt

    def _is_new(self, line: str) -> bool:
        """Adds the line to the file `told`. Returns whether the line is new, because a later attempt must not send a
        message again."""
        path = os.path.join(self.job.run, "told")
        if line in read(path).split("\n"):
            return False
        try:
            with open(path, "ab") as file:
                file.write(as_bytes(line + "\n"))
        except OSError:
            warn("{}: cannot write told. Is its disk full, or a quota used up? Going on without.".format(self.job.run))
        return True

    def _deliver(self, text: str, variables: Mapping[str, Any]) -> None:
        if self.rules.notify_command:
            found = self._run(self.rules.notify_command, text + "\n", variables)
            if found and found.code:
                warn("notify.command: ended with exit code {}.".format(found.code))
            return
        url = lines(self.rules.webhook_file)[0].strip()
        if not url:
            words = "notify.webhook_file: cannot be read on {}. Put it where the nodes see it."
            warn(words.format(self.job.host))
            return
        # The address is a secret: curl gets it on its stdin, because a list of processes shows arguments.
        config = 'url = "{}"\ndata-binary = "{}"\n'.format(_quoted(url), _quoted(payload(text)))
        found = self._run(CURL, config, {})
        if found is None:
            return
        if found.code == 127:
            words = "notify: there is no curl on {}. Load it in launch.setup, or use notify.command."
            warn(words.format(self.job.host))
        elif found.code:
            warn("notify: the webhook was not reached from {}: exit code {} of curl.".format(self.job.host, found.code))
        elif not found.said.startswith("2") or len(found.said) != 3:
            warn("notify: the webhook answers with HTTP status {}. Is its address still right?".format(found.said))

    def _run(self, words: Sequence[str], stdin: str, variables: Mapping[str, Any]) -> Optional[Answer]:
        """Runs a command in its own session, which is killed after MOST_S. Returns None if the command was killed."""
        environ = dict(self.children.environ)
        environ.update({os.fsencode("CLUSTERDP_" + key): as_bytes(str(each)) for key, each in variables.items()})
        output = None if variables else subprocess.PIPE
        with term_blocked():
            try:
                child = subprocess.Popen(
                    list(words),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=None if variables else subprocess.DEVNULL,
                    env=environ,
                    start_new_session=True,
                )
            except OSError as error:
                if variables:
                    warn("notify.command: {}: {}.".format(words[0], error.strerror))
                return Answer(127, "")
        timer = self.children.timer(MOST_S)
        given: Optional[bytes] = as_bytes(stdin)
        while child.returncode is None:
            try:
                said, _ = child.communicate(given, LOOK_S)
            except subprocess.TimeoutExpired:
                given = None
                if timer is not None and timer.poll() is not None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.communicate()
                    warn("notify: ended, because it took longer than {} s.".format(MOST_S))
                    return None
        if timer is not None:
            end(timer)
        return Answer(exit_code(child), os.fsdecode(said or b""))


CURL = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]
CURL += ["--header", "Content-Type: application/json", "--config", "-"]


def payload(text: str) -> str:
    """Returns the body for a webhook. Slack reads text between < and > as markup, unless it is escaped."""
    for each, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(each, escaped)
    return json.dumps({"text": as_bytes(text).decode("utf-8", "ignore")})


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
