"""`clusterdp checkpoint`: the verbs below this verb, and their options."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from clusterdp.cli.parser import CliParser
from clusterdp.errors import CheckpointError, ConfigError

EPILOG = """\
RUN_OR_URL is a run folder, a job id, a folder of checkpoints, one of its step folders, or a URL (s3://...). An @ adds
one step (RUN@200) or one commit by its token, as `ls` shows it. Without it the newest is meant."""

EXAMPLES = {
    "ls": "ls runs/digits-20260131-235959-1f2e",
    "verify": "verify s3://bucket/run",
    "diff": "diff runs/first 100 200",
    "export": "export runs/first@200 model.safetensors --only model",
    "prune": "prune runs/first --keep-last 2",
}


def add_to(checkpoint: CliParser) -> None:
    """Adds the verbs below `clusterdp checkpoint` to the parser."""
    checkpoint.epilog = EPILOG
    verbs = checkpoint.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, run: Any, about: str, **place: Any) -> CliParser:
        example = f"clusterdp checkpoint {EXAMPLES[name]}"
        sub: CliParser = verbs.add_parser(name, help=about, description=about, example=example)
        sub.epilog = f"example: {example}\n\n{EPILOG}"
        sub.set_defaults(verb=lambda options: _guarded(run, options), parser=sub)
        if place:
            sub.add_argument("place", **place)
        return sub

    optional: dict[str, Any] = {"nargs": "?", "metavar": "RUN_OR_URL", "help": "default: the latest run"}
    required: dict[str, Any] = {"metavar": "RUN_OR_URL"}
    sub = verb("ls", ls, "what there is, the newest first", **optional)
    sub.add_argument("--json", action="store_true", help="for programs")
    sub = verb("verify", verify, "read every byte; exit 1 if not all are good", **optional)
    sub.add_argument("--step", metavar="N", help="this one only; default: all, the newest first")
    sub = verb("diff", diff, "which tensors and values differ, and by how much; exit 1 if any does")
    sub.add_argument("words", nargs="+", metavar="WHAT", help="A B, each RUN_OR_URL[@STEP]; or RUN_OR_URL STEP STEP")
    sub.add_argument("--only", metavar="NAME", help="one object's state, such as model")
    sub = verb("export", export, "one .safetensors file, or a .pt for torch.load()", **required)
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("--step", metavar="N", help="default: the newest")
    sub.add_argument("--only", metavar="NAME", help="one object's state under its own keys, such as model")
    sub.add_argument("--force", action="store_true", help="write over FILE")
    sub = verb("prune", prune, "delete old ones; the newest is verified first, and stays", **required)
    sub.add_argument("--keep-last", type=int, required=True, metavar="K", help="the newest K good ones stay")
    sub.add_argument("--keep-every", type=int, metavar="M", help="and every M-th commit")
    sub.add_argument("--dry-run", action="store_true", help="say what would go")
    sub.add_argument("--yes", action="store_true", help="do not ask")
    sub.add_argument("--force", action="store_true", help="even if the run is alive, or may be")


def _guarded(run: Any, options: argparse.Namespace) -> int:
    try:
        code: int = run(options)
        return code
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CheckpointError(f"{where}{error.strerror or error}. Look at the storage.") from None


def ls(options: argparse.Namespace) -> int:
    from clusterdp.operate.checkpoints.ls import show_list
    from clusterdp.operate.checkpoints.place import locate

    show_list(locate(options.place), sys.stdout, as_json=options.json)
    return 0


def verify(options: argparse.Namespace) -> int:
    from clusterdp.operate.checkpoints.place import locate
    from clusterdp.operate.checkpoints.verify import show_findings

    return show_findings(locate(options.place, options.step), sys.stdout)


def diff(options: argparse.Namespace) -> int:
    from clusterdp.operate.checkpoints.diff import show_diff
    from clusterdp.operate.checkpoints.place import locate

    def measure(a: bytearray, b: bytearray, dtype: str) -> Any:
        # Torch is loaded only for tensors that differ. Equal tensors are recognized without torch.
        from clusterdp.checkpoint.load import difference

        return difference.measure(a, b, dtype)

    words = options.words
    if len(words) == 3:
        left, right = locate(words[0], words[1]), locate(words[0], words[2])
    elif len(words) == 2:
        left, right = locate(words[0]), locate(words[1])
    else:
        raise ConfigError(f"diff: {len(words)} words. Give two RUN_OR_URL[@STEP], or one and two steps.")
    return show_diff(left, right, sys.stdout, measure, options.only)


def export(options: argparse.Namespace) -> int:
    from pathlib import Path

    from clusterdp.operate.checkpoints.export import export as export_to
    from clusterdp.operate.checkpoints.place import locate

    def write_torch(*arguments: Any) -> None:
        from clusterdp.checkpoint.load import torch_file

        torch_file.write(*arguments)

    place = locate(options.place, options.step)
    export_to(place, Path(options.file), sys.stdout, write_torch, only=options.only, force=options.force)
    return 0


def prune(options: argparse.Namespace) -> int:
    from clusterdp.operate.checkpoints import prune as pruning
    from clusterdp.operate.checkpoints.place import locate

    rule = pruning.Rule(options.keep_last, options.keep_every)
    place = locate(options.place)
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    if not (options.dry_run or options.yes or asks):
        raise ConfigError("prune: no terminal to ask on. --yes deletes, --dry-run only says what would go.")
    if place.run is not None and not options.force and not options.dry_run:
        pruning.refuse_if_alive(place.run)
    plan = pruning.plan_pruning(place, rule, sys.stdout)
    pruning.show_plan(place, plan, sys.stdout)
    if not plan.victims:
        print(f"{place.name}: nothing to delete")
    elif options.dry_run:
        pass
    elif options.yes or pruning.confirmed(input):
        pruning.prune(place, plan, sys.stdout)
    else:
        print("nothing was deleted")
    return 0
