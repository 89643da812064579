"""A refusal of sbatch begins with the key of the config that it means."""

from __future__ import annotations

from typing import Any

import pytest

from clusterdp.config import from_mapping
from clusterdp.errors import SubmitError
from clusterdp.submission.send.answers import with_key

FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("said", "resources", "begins"),
    [
        (
            f"sbatch: error: invalid partition specified: lwo\n{FAILED}Invalid partition name specified",
            {"partition": "lwo"},
            "resources.partition: 'lwo' is refused by sbatch. Correct it:",
        ),
        (
            f"{FAILED}No partition specified or system default partition",
            {},
            "resources.partition: is not given, and sbatch refuses that.",
        ),
        (
            f"{FAILED}Invalid account or account/partition combination specified",
            {"partition": "gpu", "account": "nlp"},
            "resources.account: 'nlp' is refused",
        ),
        (
            f"{FAILED}Invalid account or account/partition combination specified",
            {"partition": "gpu"},
            "resources.partition: 'gpu' is refused",
        ),
        (f"{FAILED}Invalid qos specification", {"qos": "hihg"}, "resources.qos: 'hihg' is refused"),
        (
            f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)",
            {"time": "9-0"},
            "resources.time: '9-0' is refused",
        ),
        (f"{FAILED}Invalid feature specification", {"constraint": "h100"}, "resources.constraint: 'h100' is refused"),
        (
            f"{FAILED}Invalid generic resource (gres) specification",
            {"gres": "gpu:h100:1"},
            "resources.gres: 'gpu:h100:1' is refused",
        ),
        (f"{FAILED}Invalid node name specified", {"exclude": "x9"}, "resources.exclude: 'x9' is refused"),
        (f"{FAILED}Requested node configuration is not available", {}, "resources: no node of the partition has all"),
        (
            f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            {},
            "resources: more is asked for than account or QOS allow.",
        ),
        (
            "sbatch: unrecognized option '--frobnicate'",
            {"extra": {"frobnicate": "x"}},
            "resources.extra.frobnicate: 'x' is refused by sbatch.",
        ),
        ("sbatch: error: Unable to open file x", {"partition": "gpu"}, "sbatch: error: Unable to open file x"),
    ],
)
def test_sbatch_refusal_message_is_prefixed_with_its_config_key_if_known(
    said: str, resources: dict[str, Any], begins: str
) -> None:
    told = str(with_key(SubmitError(said), from_mapping({"command": "true", "resources": resources})))
    assert told.startswith(begins)
    assert told.endswith(said)
