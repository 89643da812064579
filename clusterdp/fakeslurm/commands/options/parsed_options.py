"""The options of one command line: the meaning of each value, and the errors of sbatch and srun for bad values."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field

from ...core import times
from ...core.error_texts import INVALID_GRES, INVALID_NODE, ControllerError, Refusal
from ...core.hostlist import HostlistError, expand
from ...core.job_desc import Gpus
from ...core.node_counts import NodeCounts
from ...core.release import Release
from .option_values import BAD, check
from .options import PER_COMPONENT, UNSUPPORTED

MEMORY = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})


@dataclass
class ParsedOptions:
    """The options of one command with their values. A repeated option has its last value."""

    command: str
    release: Release
    values: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> str | None:
        return self.values.get(name)

    def add(self, pairs: list[tuple[str, str]]) -> None:
        """Adds (name, value) pairs. The value of a later pair replaces an earlier value of the same option."""
        for name, value in pairs:
            if name in UNSUPPORTED or (name, value) == ("requeue", "expedite"):
                raise self.bad(f"--{name}{'=expedite' * (value == 'expedite')} is not supported by this fake cluster")
            check(self.command, name, value, self.release.complaints)
            if name in ("requeue", "no-requeue"):
                self.values.pop("requeue", None)
                self.values.pop("no-requeue", None)
            if name in MEMORY and MEMORY & {other for other, _ in pairs} - {name}:
                raise Refusal(f"{self.command}: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.")
            for other in MEMORY & {name} and MEMORY:
                self.values.pop(other, None)
            self.values[name] = value

    def after(self) -> ParsedOptions:
        """Returns the options that the next component of a heterogeneous job inherits."""
        kept = {name: value for name, value in self.values.items() if name not in PER_COMPONENT}
        return ParsedOptions(self.command, self.release, kept)

    def bad(self, text: str) -> Refusal:
        return Refusal(f"{self.command}: error: {text}", BAD)

    def invalid(self, name: str) -> Refusal:
        return self.bad(f"Invalid --{name} specification")

    def number(self, name: str, least: int = 1) -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise Refusal(f'{self.command}: error: Invalid numeric value "{text}" for --{name}.', 1)
        return int(text)

    def nodes(self) -> NodeCounts | None:
        text = self.values.get("nodes", "")
        try:
            return NodeCounts.of(text, self.release.knows_node_lists) if text else None
        except ValueError as error:
            raise self.bad(str(error)) from None

    def megabytes(self, name: str) -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        match = re.fullmatch(r"(\d+)([kKmMgGtT]?)[bB]?", text)
        if not match:
            raise self.invalid(name)
        return -(-int(match[1]) * {"": 1024, "k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}[match[2].lower()] // 1024)

    def minutes(self, name: str = "time") -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        try:
            return times.minutes(text)
        except times.BadTime:
            raise self.invalid(name) from None

    def hosts(self, name: str) -> list[str]:
        text = self.values.get(name)
        if not text:
            return []
        try:
            return list(dict.fromkeys(expand(text)))
        except HostlistError:
            if name == "nodelist" and self.release.bad_nodelist_is_fatal:
                raise Refusal(f"{self.command}: fatal: Invalid node list specified") from None
            raise ControllerError(INVALID_NODE) from None

    def warning_signal(self) -> tuple[int, int, bool] | None:
        """Returns --signal=[R][B]:SIGNAL[@SECONDS] as (number, seconds, only to the batch shell)."""
        text = self.values.get("signal")
        if text is None:
            return None
        match = re.fullmatch(r"(?:([RrBb]{1,2}):)?(\w+)(?:@(\d+))?", text)
        number = signal_number(match[2]) if match else None
        if not match or not number or int(match[3] or 60) > 65535:
            raise self.invalid("signal")
        return number, int(match[3] or 60), "B" in (match[1] or "").upper()

    def exclusive(self) -> bool:
        """Whether --exclusive gives the job whole nodes. The values `user` and `mcs` have no effect, because there are
        no other users."""
        value = self.values.get("exclusive")
        if value not in (None, "", "user", "mcs"):
            raise self.invalid("exclusive")
        return value == ""

    def gpus(self) -> Gpus:
        gpus = Gpus()
        gpus.per_job = self._gpu_count("gpus", gpus)
        gpus.per_node = self._gpu_count("gpus-per-node", gpus)
        gpus.per_task = self._gpu_count("gpus-per-task", gpus)
        gres = self.values.get("gres")
        if gres is not None and gres.lower() != "none":
            gpus.gres = gres
            for part in gres.split(","):
                match = re.fullmatch(r"(?:gres[:/])?gpu(?:[:=](.+))?", part)
                kind_and_count = _kind_and_count(match[1] or "1") if match else None
                if kind_and_count is None:
                    raise Refusal(f"{self.command}: error: {INVALID_GRES}", 1)
                kind, gpus.per_node = kind_and_count
                gpus.kind = kind or gpus.kind
        return gpus

    def tres_per_task(self) -> dict[str, str]:
        """Returns the parts of --tres-per-task=cpu=3,gres/gpu:1 by name, like cpu."""
        parts = [re.split("[=:]", part) for part in (self.values.get("tres-per-task") or "").split(",")]
        return {part[0]: part[-1] for part in parts if len(part) > 1}

    def gpu_bind(self) -> str | None:
        """Returns the binding of tasks to the GPUs of their node, in the form of --gpu-bind."""
        of_tres = (self.values.get("tres-bind") or "").partition("gres/gpu:")[2]
        return self.values.get("gpu-bind") or of_tres or None

    def _gpu_count(self, name: str, gpus: Gpus) -> int | None:
        """Returns the number in a value like a100:2, and stores the type (a100) in `gpus`."""
        text = self.values.get(name)
        if text is None:
            return None
        found = _kind_and_count(text)
        if found is None:
            raise self.invalid(name)
        gpus.kind = (found[0] if found[1] else "") or gpus.kind
        return found[1]


def _kind_and_count(text: str) -> tuple[str, int] | None:
    """Returns the type of GPU and the number in a value like `2`, `a100:2` or `a100`."""
    kind, _, count = text.rpartition(":")
    if not count.isdigit():
        return None if kind else (text, 1)
    return kind, int(count)


def signal_number(text: str) -> int | None:
    """Returns the number of a signal, which may be written as USR1, SIGUSR1, usr1 or 10."""
    if text.isdigit():
        return int(text) or None
    name = text.upper().removeprefix("SIG")
    found = getattr(signal, f"SIG{name}", None)
    return int(found) if isinstance(found, signal.Signals) else None
