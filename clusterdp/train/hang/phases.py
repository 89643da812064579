"""The numbers of the page, the phases of a rank, and which of them may take long. It imports nothing."""

# Steps done; the phase; items of an evaluation; steps that were done when this loop began.
STEP, PHASE, SIGNS, FIRST = range(4)
BYTES = 4 * 8

# The phases in the order in which a rank comes through them between two counts of a step.
PHASES = (
    "start",
    "restore",
    "agreement",
    "save",
    "evaluation",
    "program",
    "end",
    "data",
    "step",
    "backward",
    "optimizer",
    "metrics",
)
START, RESTORE, AGREEMENT, SAVE, EVALUATION, PROGRAM, END, DATA, STEP_BODY, BACKWARD, OPTIMIZER, METRICS = range(12)

# The lap of a stopwatch that has ended -> the phase that follows it.
AFTER = {
    "data": STEP_BODY,
    "copy": STEP_BODY,
    "forward": BACKWARD,
    "backward": OPTIMIZER,
    "optimizer": METRICS,
    "metrics": METRICS,
    "step": AGREEMENT,
    "agreement": AGREEMENT,
    "checkpoint": DATA,
}

FIRST_STEP = "first step"  # of a loop in an attempt: it opens the data, and may compile
LONG = (FIRST_STEP, "start", "restore", "save", "evaluation", "program")  # phases that may take long


def phase_name(number: int, *, first: bool) -> str:
    return FIRST_STEP if first and number >= DATA else PHASES[number]
