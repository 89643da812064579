"""What is wrong with a program that was warned by a signal and still lost steps: by its handlers, as the kernel knew
them, by what it wrote afterwards, and by its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterdp.rehearse.program_parts import at
from clusterdp.rehearse.run_spec import Hit
from clusterdp.wording import counted, some_of

if TYPE_CHECKING:
    from clusterdp.rehearse.diagnosis import Case

SLACK_S = 0.5  # between a kill and what the kernel then closes, or what is on record


def of_signal(case: Case) -> str:
    """Of the first stop with a warning; empty if the warning was used, or if nothing is known of it."""
    hit = next((hit for hit in case.result.hits if hit.grace_s and hit.handlers), None)
    if hit is None or not (case.lost or case.result.state != "done"):
        return ""
    said = _of_handlers(case, hit) or _of_shells(hit) or _of_time(case, hit) or _of_end(case, hit)
    return f"{said}; {counted(case.lost, 'step')} had to be done again" if said and case.lost else said


def _of_handlers(case: Case, hit: Hit) -> str:
    ranks: dict[str, list[str]] = {}
    for rank, word in hit.handlers.items():
        ranks.setdefault(word, []).append(rank)
    if len(ranks) == 1:
        [word] = ranks
        return {
            "ignored": "the program ignores SIGTERM, on all ranks",
            "default": "the program has no handler for SIGTERM: all ranks die of it at once",
            "blocked": "SIGTERM is blocked on all ranks, and was not taken" if _outlived(case, hit) else "",
        }.get(word, "")
    deaf = [*ranks.get("default", []), *ranks.get("ignored", [])]
    if not deaf:
        return ""
    does = "dies of it at once" if "default" in ranks else "ignores it"
    if len(deaf) > 1:
        does = "die of it at once" if "default" in ranks else "ignore it"
    places = case.text.handler_on_one_rank if case.text else []
    where = f" ({at(places[0])})" if places else ""
    hearing = [rank for rank in hit.handlers if rank not in deaf]
    return f"{_ranks(hearing)} alone {_s(hearing, 'handle')} SIGTERM{where}: {_ranks(deaf)} {does}"


def _of_shells(hit: Hit) -> str:
    if not hit.shells:
        return ""
    name = next(iter(hit.shells.values()))
    return (
        f"SIGTERM kills {name} above the program of {_ranks([*hit.shells])}, which ends the task before the program has"
        " saved: start the program with exec"
    )


def _of_time(case: Case, hit: Hit) -> str:
    """The ranks were killed when their time was over."""
    if not _outlived(case, hit):
        return ""
    grace, killed = f"{hit.grace_s:g} s", hit.at + (hit.grace_s or 0)
    cut = [
        path
        for path, use in case.result.files.items()
        if any(killed - SLACK_S <= each <= _ended(case, hit) + SLACK_S for each in use.written)
        and not any(each >= hit.at for each in use.named)
    ]
    if cut:
        return f"the warning is shorter than the save: {cut[0]} was not whole {grace} after SIGTERM"
    step = case.last_steps.get(hit.attempt)
    if hit.step is not None and step is not None and step > hit.step + 2:
        return f"its handler does not stop the training: {grace} after SIGTERM it was at step {step}, from {hit.step}"
    places = case.text.collective_in_handler if case.text else []
    if places:
        where = f"{at(places[0])}: {places[0].text}"
        return f"its handler calls a collective ({where}): {grace} after SIGTERM it still hung, and had not saved"
    return f"it hangs in its handler, or its save takes longer than the warning: {grace} after SIGTERM it had not saved"


def _of_end(case: Case, hit: Hit) -> str:
    """All ranks handle it, and ended in time."""
    places = case.text.collective_in_handler if case.text else []
    if places:
        return f"its handler calls a collective ({at(places[0])}: {places[0].text}), and has not saved"
    ended = _ended(case, hit)
    saved = [path for path, use in case.result.files.items() if use.whole_at(ended + 1) and _after(use.written, hit.at)]
    if not saved and case.result.files:
        return "it handles SIGTERM, and ends without a save"
    return ""


def _after(times: list[float], then: float) -> bool:
    return any(time > then for time in times)


def _outlived(case: Case, hit: Hit) -> bool:
    """Whether the ranks ran to the end of their grace time, and were killed."""
    return hit.grace_s is not None and _ended(case, hit) - hit.at >= hit.grace_s - SLACK_S


def _ended(case: Case, hit: Hit) -> float:
    return next((each.ended or hit.at for each in case.history.attempts if each.name == hit.attempt), hit.at)


def _ranks(ranks: list[str]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {some_of(ranks, 5)}"


def _s(ranks: list[str], verb: str) -> str:
    return f"{verb}s" if len(ranks) == 1 else verb
