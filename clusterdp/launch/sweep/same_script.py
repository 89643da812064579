"""Whether all elements of a sweep can have one script.

The script is rendered for each element, but for the text itself: what the template is given must be the same. Only the
program's words may differ, for the script reads them from a file of the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from clusterdp.config import Config
from clusterdp.config.elements import Element, in_words
from clusterdp.errors import ConfigError
from clusterdp.launch.batch_rules import rules_of
from clusterdp.launch.script import template_values
from clusterdp.launch.script_spec import ScriptSpec, make_spec

WORDS = {"command", "script", "delimiter"}  # of the program
BY_SUBMIT = {"backend", "run_dir", "snapshot", "local"}  # read where the sweep is submitted, once


def check_same_script(elements: Sequence[Element], spec: ScriptSpec) -> None:
    """ConfigError, with the key, for the first element that another script would be needed for. spec: of element 0."""
    first = elements[0].config
    wanted = _rendered_from(first, spec)
    for element in elements[1:]:
        if _rendered_from(element.config, spec) != wanted:
            raise _refusal(element, elements[0], spec, wanted)
    for key in elements[0].values:
        if key.partition(".")[0] in BY_SUBMIT:
            raise ConfigError(f"sweep: {key} is for the sweep as a whole. Submit runs that differ in it apart.")


def check_words_differ(elements: Sequence[Element], spec: ScriptSpec) -> None:
    """ConfigError if params are swept that no program is given."""
    keys = elements[0].values
    if spec.kind == "entry" or len(elements) == 1 or not all(key.startswith("params.") for key in keys):
        return
    first = elements[0].config
    if all(each.config.command == first.command and each.config.script == first.script for each in elements):
        key = next(iter(keys))
        raise ConfigError(
            f"sweep: {key} is nowhere in {spec.kind}:, so all elements do the same. Write ${{{key}}} there."
        )


def _rendered_from(config: Config, spec: ScriptSpec) -> dict[str, Any]:
    own = make_spec(config, spec.run_dir, spec.submit_dir, spec.python)
    values = {**template_values(own), "rules": rules_of(own)}
    return {name: value for name, value in values.items() if name not in WORDS}


def _refusal(element: Element, first: Element, spec: ScriptSpec, wanted: dict[str, Any]) -> ConfigError:
    """Names the swept key whose section alone makes the difference."""
    for key in element.values:
        section = key.partition(".")[0]
        alone = replace(first.config, **{section: getattr(element.config, section)})
        if _rendered_from(alone, spec) != wanted:
            said = f"{key} changes the job's script"
            break
    else:
        one, other = element.config, first.config
        names = [each.name for each in fields(Config) if getattr(one, each.name) != getattr(other, each.name)]
        said = f"{in_words(element.values)} changes the job's script, by {', '.join(names)}"
    return ConfigError(
        f"sweep: {said}, and all elements have one: the same resources, environment and restart policies. "
        "Submit runs that differ in it apart."
    )


def check_template(template: str | None) -> None:
    """A template of the user's own must know elements: else all would run in one folder."""
    if template and Path(template).is_file() and "element" not in Path(template).read_text(errors="replace"):
        raise ConfigError(
            f"launch.template: {template} has no {{{{ element }}}}, so it is for a single run. "
            "See how srun.sbatch.j2 sets run_dir."
        )
