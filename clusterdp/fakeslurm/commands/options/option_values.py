"""The valid values of options, and the errors of sbatch, srun and salloc for invalid values.

The module has only options whose values the cluster does not use. parsed_options.py parses the values that the cluster
uses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from ...core import times
from ...core.error_texts import Refusal

BAD = 255  # exit status for values that the command itself cannot parse
Check = Callable[[str], str | None]  # takes a value and returns the error text, or None for a valid value

MAIL = frozenset(
    """
    NONE BEGIN END FAIL REQUEUE ALL INVALID_DEPEND STAGE_OUT TIME_LIMIT TIME_LIMIT_90 TIME_LIMIT_80 TIME_LIMIT_50
    ARRAY_TASKS
    """.split()
)
HINTS = ("compute_bound", "memory_bound", "multithread", "nomultithread")
RLIMITS = frozenset("ALL NONE AS CORE CPU DATA FSIZE MEMLOCK NOFILE NPROC RSS STACK".split())
PROFILES = frozenset("all none energy task filesystem lustre network".split())


def check(command: str, name: str, value: str, complaints: Mapping[str, str]) -> None:
    """Raises Refusal for an invalid value of an option. `complaints`: error texts, by option, that only this release
    has."""
    if name in NUMBERS and not re.fullmatch(r"0*[1-9]\d*" if name not in MAY_BE_0 else r"\d+", value):
        raise Refusal(f'{command}: error: Invalid numeric value "{value}" for --{name}.', 1)
    if name in CHECKS:
        complaint = CHECKS[name](value)
        if complaint and name in complaints:
            complaint = complaints[name].format(value)
        if complaint:
            raise Refusal(
                "\n".join(f"{command}: error: {line}" for line in complaint.split("\n")), CODES.get(name, BAD)
            )
    if name in MOMENTS:
        try:
            times.moment(value, 0)
        except times.BadTime:
            complaint = f"{command}: error: Invalid --{name} specification"
            raise Refusal(f"Invalid time specification (pos=0): {value}\n{complaint}", BAD) from None


MAY_BE_0 = ("ntasks-per-node", "wait-all-nodes")
NUMBERS = frozenset(
    """
    core-spec cpus-per-gpu cpus-per-task mincpus ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
    ntasks-per-socket sockets-per-node cores-per-socket threads-per-core wait-all-nodes
    """.split()
)
MOMENTS = frozenset({"begin", "deadline"})


def _matches(pattern: str, complaint: str, flags: int = re.IGNORECASE) -> Check:
    return lambda value: None if re.fullmatch(pattern, value, flags) else complaint.format(value)


def _invalid(name: str, pattern: str) -> Check:
    return _matches(pattern, f"Invalid --{name} specification")


def _mail(value: str) -> str | None:
    return None if {word.upper() for word in value.split(",")} <= MAIL else "Invalid --mail-type specification"


def _hint(value: str) -> str | None:
    return None if value in HINTS else f'unrecognized --hint argument "{value}", see --hint=help'


def _propagate(value: str) -> str | None:
    for word in value.split(",") if value else []:
        if word.upper().removeprefix("RLIMIT_") not in RLIMITS:
            return f"Bad rlimit name: {word}\n--propagate={value} is not valid."
    return None


def _profile(value: str) -> str | None:
    known = {word.lower() for word in value.split(",")} <= PROFILES
    return None if known else f"invalid --profile={value} option"


def _wait_all_nodes(value: str) -> str | None:
    return None if value in ("0", "1") else "Invalid --wait-all-nodes specification"


def _extra_node_info(value: str) -> str | None:
    first = value.split(":")[0]
    return None if re.fullmatch(r"\*|\d+(-\d+)?", first) else f'Invalid numeric value "{first}" for first arg of -B.'


def _distribution(value: str) -> str | None:
    second = r"(:(\*|block|cyclic|fcyclic)){0,2}"
    if re.fullmatch(rf"(\*|arbitrary|plane=0*[1-9]\d*|(block|cyclic){second})(,(no)?pack)?", value, re.IGNORECASE):
        return None
    plane = "Invalid plane size or size not specified\n" if value.lower().startswith("plane") else ""
    return f"{plane}Invalid --distribution specification"


def _cpu_freq(value: str) -> str | None:
    speed = r"(low|medium|high|highm1|\d+)"
    if re.fullmatch(rf"{speed}(-{speed})?(:\w+)?|conservative|ondemand|performance|powersave", value, re.IGNORECASE):
        return None
    return f'unrecognized --cpu-freq argument "{value}"\nInvalid --cpu-freq argument'


BINDING = r"(verbose,)?(none|closest|(single|per_task):0*[1-9]\d*|(map|mask)_gpu:{0}(,{0})*)".format(
    r"(0x[\da-f]+|\d+)(\*\d+)?"
)
CHECKS: dict[str, Check] = {
    "accel-bind": _matches("[gmnv]+", "Invalid --accel-bind specification"),
    "acctg-freq": _matches(r"((task|energy|network|filesystem)=\d+,?)+|\d+", "Invalid --acctg-freq specification: {}"),
    "bbf": lambda value: "Invalid --bbf specification",  # the fake has no burst buffers
    "cpu-freq": _cpu_freq,
    "delay-boot": _invalid("delay-boot", r"\d+(:\d+)*"),
    "distribution": _distribution,
    "gpu-bind": _matches(BINDING, "Invalid --gpu-bind argument: gpu:{}"),
    "tres-bind": _matches(f"gres/gpu:{BINDING}", "Invalid --tres-bind argument: {}"),
    "gpu-freq": _matches(
        r"((memory=)?(low|medium|high|highm1|\d+),?)+(verbose)?", "Invalid --gpu-freq argument: gpu:{}"
    ),
    "gres-flags": _invalid("gres-flags", "disable-binding|enforce-binding"),
    "hint": _hint,
    "kill-on-invalid-dep": _invalid("kill-on-invalid-dep", "y|yes|n|no"),
    "mail-type": _mail,
    "mem-bind": _matches(
        r"(q|quiet|v|verbose|none|local|rank|no|nosort|sort|p|prefer|(map|mask)_mem:[\w,*]+|,)+",
        'unrecognized --mem-bind argument "{}"',
    ),
    "profile": _profile,
    "propagate": _propagate,
    "switches": _matches(r"\d+(@.*)?", 'Invalid numeric value "{}" for --switches.'),
    "requeue": _invalid("requeue", "|expedite"),
    "time-min": _invalid("time-min", r"(\d+-)?\d+(:\d+){0,2}|-1|infinite|unlimited"),
    "tmp": _invalid("tmp", r"\d+[kmgt]?b?"),
    "uid": _matches(f"{os.getuid()}", "Invalid --uid specification"),
    "gid": _matches(f"{os.getgid()}", "Invalid --gid specification"),
    "wait-all-nodes": _wait_all_nodes,
    "extra-node-info": _extra_node_info,
}
# The exit codes of options whose errors do not exit with 255.
CODES = dict.fromkeys(("bbf", "extra-node-info", "hint", "propagate", "switches"), 1)
