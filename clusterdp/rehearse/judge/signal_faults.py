"""The fault of a program that was warned by a signal and still lost steps. The evidence is the signal handlers that the
kernel reports, and the files that the program wrote after the warning.

If the program was killed in its handler, its text shows which calls the handler makes.
"""

from __future__ import annotations

from clusterdp.rehearse.judge.failed_drill import FailedDrill
from clusterdp.rehearse.judge.lost_state import at
from clusterdp.rehearse.observe.file_use import FileUse
from clusterdp.rehearse.run_spec import Hit
from clusterdp.wording import counted, some_of

JUST_NOW, JUST_NOW_S = 0.25, 1.0  # little is lost so soon after a save: part of the interval of saves, or seconds
SLACK_S = 0.5  # seconds from a kill to the closing of the ranks' files, or to the recorded end


def of_signal(case: FailedDrill) -> str:
    """Returns the fault in words, by the first stop with a warning. Returns "" if the program used the warning, or if
    no fault is known."""
    hit = next((hit for hit in case.result.hits if hit.grace_s and hit.handlers), None)
    if hit is None:
        return ""
    if case.lost == 0 and case.result.state == "done":
        return _of_handlers(case, hit) or _of_shells(hit) if is_deaf(hit) else ""
    said = _of_handlers(case, hit) or _of_shells(hit) or _of_time(case, hit) or _of_end(case, hit)
    return f"{said}; {counted(case.lost, 'step')} had to be done again" if said and case.lost else said


def outlived(case: FailedDrill) -> bool:
    """Whether ranks that were warned ran to the end of their grace time, and were killed."""
    return any(_outlived(case, hit) for hit in case.result.hits if hit.grace_s)


def unsaved(case: FailedDrill, may_lose: int) -> str:
    """Returns the fault of a program that was warned and did not save. Returns "" if it saved, or if the user accepts
    the loss (may_lose). One lost step for each warning is no fault, because a handler that stops at once repeats the
    step of the warning."""
    warned = [hit for hit in case.result.hits if hit.grace_s and hit.causes]
    known = case.facts.steps is not None and case.lost is not None
    heard = [hit for hit in warned if not is_deaf(hit) and not _outlived(case, hit)]
    accepted = f"rehearse.may_lose is {may_lose}"
    if warned and case.lost and case.lost > max(may_lose, len(heard)):
        return f"{counted(case.lost, 'step')} done again, though it was warned ({accepted})"
    if not case.lost and not may_lose and any(is_deaf(hit) for hit in warned):
        luck = "" if case.lost is None else "; nothing was lost, by luck"
        return f"the warning was not heard{luck} ({accepted})"
    taken = [hit for hit in warned if not is_deaf(hit)]
    if not known and not may_lose and any(_is_stale(case, hit) for hit in taken):
        return f"it was warned, and ended without a save ({accepted})"
    return ""


def _is_stale(case: FailedDrill, hit: Hit) -> bool:
    """Whether the program had saved before, but not shortly before the warning, and did not save after the warning."""
    times = [time for use in case.result.files.values() for time in (*use.written, *use.named) if time < hit.at]
    if not times or _saved(case, hit):
        return False
    return hit.at - max(times) > (JUST_NOW * case.facts.save_every_s or JUST_NOW_S)


def is_deaf(hit: Hit) -> bool:
    """Whether the warning kills a rank, or a shell above the rank's program, or whether all ranks ignore the warning.

    If only some ranks ignore the signal, a rank that handles it may inform them.
    """
    words = set(hit.handlers.values())
    return "default" in words or words == {"ignored"} or bool(hit.shells)


def _of_handlers(case: FailedDrill, hit: Hit) -> str:
    ranks: dict[str, list[str]] = {}
    for rank, word in hit.handlers.items():
        ranks.setdefault(word, []).append(rank)
    if len(ranks) == 1:
        [word] = ranks
        return {
            "ignored": f"the program ignores {hit.signal}, on all ranks",
            "default": f"the program has no handler for {hit.signal}: all ranks die of it at once",
            "blocked": f"{hit.signal} is blocked on all ranks, and was not taken" if _outlived(case, hit) else "",
        }.get(word, "")
    deaf = [*ranks.get("default", []), *ranks.get("ignored", [])]
    if not deaf:
        return ""
    does = "dies of it at once" if "default" in ranks else "ignores it"
    if len(deaf) > 1:
        does = "die of it at once" if "default" in ranks else "ignore it"
    hearing = [rank for rank in hit.handlers if rank not in deaf]
    return f"{_ranks(hearing)} alone {_s(hearing, 'handle')} {hit.signal}: {_ranks(deaf)} {does}"


def _of_shells(hit: Hit) -> str:
    if not hit.shells:
        return ""
    name = next(iter(hit.shells.values()))
    return (
        f"{hit.signal} kills {name} above the program of {_ranks([*hit.shells])}, which ends the task before the"
        " program has saved: start the program with exec"
    )


def _of_time(case: FailedDrill, hit: Hit) -> str:
    """Returns words if the ranks were killed at the end of their grace time."""
    if not _outlived(case, hit):
        return ""
    when = f"{hit.grace_s:g} s after {hit.signal}"
    cut = [path for path, use in case.result.files.items() if _is_cut(case, hit, use)]
    if cut:
        return f"the warning is shorter than the save: {cut[0]} was not whole {when}"
    step = case.last_steps.get(hit.attempt)
    if hit.step is not None and step is not None and step - hit.step > max(2.0, _usual_steps(case, hit) / 2):
        return f"its handler does not stop the training: {when} it was at step {step}, from {hit.step}"
    places = case.text.collective_in_handler if case.text else []
    if places:
        calls = f"its handler calls a collective ({at(places[0])}: {places[0].text}), which waits for all ranks"
        return f"{when} it had neither saved nor ended; {calls}"
    return f"it hangs in its handler, or its save takes longer than the warning: {when} it had not saved"


def _usual_steps(case: FailedDrill, hit: Hit) -> float:
    """Returns how many steps the undisturbed run makes within the grace time, or 0 if its time is not known."""
    trained_s = case.facts.took_s - case.facts.start_s
    return (case.facts.steps or 0) * (hit.grace_s or 0) / trained_s if trained_s > 0 else 0.0


def _is_cut(case: FailedDrill, hit: Hit, use: FileUse) -> bool:
    """Whether the file was open for writing until the ranks were killed.

    The kill may come after the recorded end, because a batch script ends at once, but Slurm kills the step only after
    KillWait.
    """
    killed = hit.at + (hit.grace_s or 0) - SLACK_S
    again = next((each.started for each in case.history.attempts if (each.started or 0) > hit.at), None)
    until = again or _ended(case, hit) + SLACK_S
    moved = any(hit.at <= each < until for each in (*use.named, *use.gone))
    return not moved and any(killed <= each < until for each in use.closed)


def _of_end(case: FailedDrill, hit: Hit) -> str:
    """Returns words if the program handles the signal, and ended in time, but without a save."""
    if not case.result.files or _saved(case, hit):
        return ""
    return f"it handles {hit.signal}, and ends without a save"


def _saved(case: FailedDrill, hit: Hit) -> bool:
    """Whether a file was written, or renamed to its name, between the warning and the attempt's end."""
    until = _ended(case, hit) + 1
    return any(
        use.whole_at(until) is not None and any(hit.at < time < until for time in (*use.written, *use.named))
        for use in case.result.files.values()
    )


def _outlived(case: FailedDrill, hit: Hit) -> bool:
    """Whether the ranks ran to the end of their grace time, and were killed."""
    return hit.grace_s is not None and _ended(case, hit) - hit.at >= hit.grace_s - SLACK_S


def _ended(case: FailedDrill, hit: Hit) -> float:
    return next((each.ended or hit.at for each in case.history.attempts if each.name == hit.attempt), hit.at)


def _ranks(ranks: list[str]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {some_of(ranks, 5)}"


def _s(ranks: list[str], verb: str) -> str:
    return f"{verb}s" if len(ranks) == 1 else verb
