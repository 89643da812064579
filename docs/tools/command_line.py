"""The pages of the command line: verbs.md from the parsers, and json.md from the schema of --json."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clusterdp import operate
from clusterdp.cli.arguments import parser
from clusterdp.rehearse.show import outcome
from docs.tools.markdown import anchor, block, code, escaped, page, sentence, table
from docs.tools.tables import EVENTS

SCHEMA = Path(operate.__file__).parent / "json.schema.json"
WIDTH = 100  # of a usage

# -- verbs.md --


def verbs() -> Iterator[tuple[argparse.ArgumentParser, bool]]:
    """Yields the parser of each verb and subverb in the order of --help, and whether it takes --json."""

    def below(above: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
        for action in above._actions:
            if isinstance(action, argparse._SubParsersAction):
                for each in action.choices.values():
                    yield each
                    yield from below(each)

    for each in below(parser()):
        yield each, any("--json" in action.option_strings for action in each._actions)


def verbs_page() -> str:
    top = parser()
    rows = [
        (f"[{code(each.prog)}](#{anchor(each.prog)})", escaped(_about_verb(each)[0]), "yes" if as_json else "")
        for each, as_json in verbs()
        if not _has_verbs(each)
    ]
    parts = [sentence(escaped(top.description or "")), *_epilog(top.epilog or ""), _arguments(top)]
    parts.append("[Another page](json.md) has the keys of the JSON that a verb prints with `--json`.")
    parts.append(table(("verb", "what it does", "`--json`"), rows))
    for each, as_json in verbs():
        parts += _verb(each, as_json)
    return page("Verbs of the command line", *parts)


def _about_verb(one: argparse.ArgumentParser) -> list[str]:
    """Returns the paragraphs of a verb's description. The first is also its line in --help."""
    return (one.description or "").split("\n\n")


def _has_verbs(one: argparse.ArgumentParser) -> bool:
    return any(isinstance(action, argparse._SubParsersAction) for action in one._actions)


def _verb(one: argparse.ArgumentParser, as_json: bool) -> Iterator[str]:
    yield f"## {code(one.prog)}" if one.prog.count(" ") == 1 else f"### {code(one.prog)}"
    first, *more = _about_verb(one)
    yield "\n\n".join([sentence(escaped(first)), *map(escaped, more)])
    if _has_verbs(one):
        yield from _epilog(one.epilog or "")
        return
    yield block(usage(one))
    yield _arguments(one)
    keys = f"json.md#{one.prog.partition(' ')[2].replace(' ', '_')}"
    yield f"`--json`: yes, with [these keys]({keys})." if as_json else "`--json`: no."
    yield f"Example:\n\n{block(one.example)}"  # type: ignore[attr-defined]


def usage(one: argparse.ArgumentParser) -> str:
    """Returns the usage, which argparse words differently in each release of Python."""
    exclusive = {id(action): group for group in one._mutually_exclusive_groups for action in group._group_actions}
    words: list[str] = []
    for action in sorted(_shown(one), key=lambda action: bool(action.option_strings)):
        group = exclusive.get(id(action))
        if group is None:
            words.append(_usage_of(action))
        elif group._group_actions[0] is action:
            words.append(f"[{' | '.join(_usage_of(each).strip('[]') for each in group._group_actions)}]")
    indent = " " * (len(one.prog) + 1)
    words = [word.replace(" ", "\0") for word in words]  # a line does not end within an argument
    lines = textwrap.fill(" ".join([one.prog.replace(" ", "\0"), *words]), WIDTH, subsequent_indent=indent)
    return lines.replace("\0", " ")


def _usage_of(action: argparse.Action) -> str:
    value = _value(action)
    if action.option_strings:
        word = f"{action.option_strings[-1]} {value}".strip()
        return word if action.required else f"[{word}]"
    return value


def _value(action: argparse.Action) -> str:
    name = str(action.metavar or "{" + ",".join(action.choices or ()) + "}")
    forms = {None: name, "?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]", 0: ""}
    return forms[action.nargs]  # type: ignore[index]


def _shown(one: argparse.ArgumentParser) -> list[argparse.Action]:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return [action for action in one._actions if not isinstance(action, hidden)]


def _arguments(one: argparse.ArgumentParser) -> str:
    rows = [(_names(action), escaped(_help(action))) for action in _shown(one)]
    return table(("argument", "meaning"), rows) if rows else ""


def _names(action: argparse.Action) -> str:
    names = [f"{name} {_value(action)}".strip() for name in action.option_strings] or [_value(action)]
    return ", ".join(map(code, names))


def _help(action: argparse.Action) -> str:
    said = action.help or ""
    if isinstance(action, argparse._VersionAction):
        return "print the version"
    if action.default not in (None, False, "", argparse.SUPPRESS, []) and "default" not in said:
        said += f"; default: {action.default}"
    return said


def _epilog(text: str) -> Iterator[str]:
    """Yields a parser's epilog, whose indented lines are commands."""
    for is_code, lines in _runs(text.splitlines(), lambda line: line.startswith("  ")):
        yield block(textwrap.dedent("\n".join(lines))) if is_code else escaped(" ".join(lines))


def _runs(lines: Sequence[str], kind: Callable[[str], bool]) -> list[tuple[bool, list[str]]]:
    found: list[tuple[bool, list[str]]] = []
    for line in filter(None, lines):
        if not found or found[-1][0] != kind(line):
            found.append((kind(line), []))
        found[-1][1].append(line)
    return found


# -- json.md --


def _of_verbs() -> dict[str, Any]:
    """Returns the schemas of the verbs, by name: `checkpoint_ls`."""
    definitions = json.loads(SCHEMA.read_text())["$defs"]
    return {name: each for name, each in definitions.items() if each.get("description", "").startswith("clusterdp ")}


def json_page() -> str:
    schema = json.loads(SCHEMA.read_text())
    intro = (
        sentence(escaped(schema["description"].replace("$defs", "`clusterdp/operate/json.schema.json`")))
        + " A key `attempts[].name` is the key `name` of each item of the array `attempts`."
    )
    parts = [intro]
    for name, each in _of_verbs().items():
        command, json_option, rest = each["description"].partition(" --json")
        parts += [f"## {code(name)}", f"{code(command + json_option)}{escaped(rest)}", _keys(each, schema["$defs"])]
    parts += ["## `rehearse`", *_rehearsal(), "## The ledger", *_ledger()]
    return page("Output with `--json`, and the ledger", *parts)


def _rehearsal() -> Iterator[str]:
    """Yields the parts about rehearsal.json, which a docstring describes."""
    about, keys = (inspect.getdoc(outcome.as_json) or "").split("\n\n")
    yield f"`clusterdp rehearse --json` prints rehearsal.json. {escaped(about.partition('. ')[2])}"
    rows = [re.split(r" {2,}", line, maxsplit=1) for line in keys.splitlines()]
    yield table(
        ("key", "meaning"), [(", ".join(map(code, names.split(", "))), escaped(about)) for names, about in rows]
    )


def _keys(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    rows = [(code(key), kind, escaped(about)) for key, kind, about in _rows(schema, definitions, "")]
    return table(("key", "type", "meaning"), rows)


def _rows(schema: dict[str, Any], definitions: dict[str, Any], above: str) -> Iterator[tuple[str, str, str]]:
    """Yields (key, type, description) of everything within a value."""
    schema = _resolved(schema, definitions)
    if schema.get("items"):
        yield from _rows(schema["items"], definitions, f"{above}[]")
    for name, value in schema.get("properties", {}).items():
        value = _resolved(value, definitions)
        key = f"{above}.{name}".lstrip(".")
        yield key, _type_of(value, definitions), _about(value)
        yield from _rows(value, definitions, key)


def _about(value: dict[str, Any]) -> str:
    about = value.get("description", "")
    return about + (f" One of {', '.join(value['examples'])}." if "examples" in value else "")


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema, joined with the one that it refers to, whose properties come first."""
    if "$ref" not in schema:
        return schema
    base = _resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    joined = {**base, **schema, "properties": {**base.get("properties", {}), **schema.get("properties", {})}}
    del joined["$ref"]
    return joined


def _type_of(value: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "enum" in value:
        return ", ".join(code(json.dumps(each)) for each in value["enum"])
    kinds = value.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "prefixItems" in value:
        inner = " of [" + ", ".join(_type_of(each, definitions) for each in value["prefixItems"]) + "]"
    elif "array" in kinds:
        inner = f" of {_type_of(_resolved(value.get('items', {}), definitions), definitions)}"
    else:
        more = value.get("additionalProperties")
        inner = f" of {_type_of(_resolved(more, definitions), definitions)}" if isinstance(more, dict) else ""
    return " or ".join(kind + (inner if kind in ("array", "object") else "") for kind in kinds)


def _ledger() -> Iterator[str]:
    yield (
        "`events/<attempt>-<writer>.jsonl` of a run folder has a JSON object in each line. Each has `time` (Unix time "
        "in seconds), `event` and `attempt`; `attempt` is `submit-<job>` for events outside of attempts. Readers merge "
        "the files of all writers by time, skip a torn last line, and ignore events and keys that they do not know. A "
        "key of the table may be missing. `job.event(name, key=value)` adds events of a program's own."
    )
    rows = [
        (code(name), ", ".join(map(code, each.keys.split())), each.writers.replace(" ", ", "), each.meaning)
        for name, each in EVENTS.items()
    ]
    yield table(("event", "keys", "writers", "meaning"), rows)
