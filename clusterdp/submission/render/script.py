"""Script: the script for sbatch, rendered from a template. Every value is quoted, except values of the class Shell."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

import clusterdp
from clusterdp.batch.files.job import EXPORTED
from clusterdp.config.tree import LaunchConfig, ResourcesConfig
from clusterdp.errors import ConfigError
from clusterdp.submission.render.batch_rules import requeues_of, rules_of
from clusterdp.submission.render.job_secrets import secret_path
from clusterdp.submission.render.script_spec import ScriptSpec, lines_of
from clusterdp.submission.render.shipped_files import shipped_folder

# Python 3.6 is enough for the batch program, because RHEL 8 and SLES 15 have only this version.
SYSTEM_PYTHONS = ("python3", "/usr/bin/python3", "/usr/libexec/platform-python")


class Shell(str):
    """Text that is put into the script without quoting: words that are quoted already."""


@dataclass(frozen=True)
class Script:
    text: str
    template: Path
    rules: dict[str, Any]


def render(spec: ScriptSpec) -> Script:
    """Returns the whole script. Only the template is read: with the same template, the same spec gives the same
    bytes."""
    ours = shipped_folder("sbatch_templates")
    launch = spec.config.launch
    _refuse_collisions(launch, ours)
    template = Path(launch.template) if launch.template else ours / f"{launch.launcher}.sbatch.j2"
    if not template.is_file():
        raise ConfigError(f"launch.template: no such file: {template}. Start from a copy of one in {ours}.")
    try:
        text = _environment(template.parent, ours).get_template(template.name).render(template_values(spec))
    except jinja2.UndefinedError as error:
        known = ", ".join(sorted(template_values(spec)))
        raise ConfigError(f"launch.template: {template}: {error.message}. There are: {known}.") from None
    except jinja2.TemplateNotFound as error:
        parts = ", ".join(sorted(f"parts/{path.name}" for path in (ours / "parts").iterdir()))
        raise ConfigError(f"launch.template: {template}: there is no {error.name}. There are: {parts}.") from None
    except jinja2.TemplateError as error:
        line = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise ConfigError(f"launch.template: {template}{line}: {error.message}. Correct the template.") from None
    return Script(text, template, script_rules(spec))


def script_rules(spec: ScriptSpec) -> dict[str, Any]:
    """Returns the rules that the batch program reads in the run folder."""
    return rules_of(spec, render_part(spec, "check.sh") if spec.config.launch.preflight else "")


def render_part(spec: ScriptSpec, name: str) -> str:
    """Returns one part of clusterdp's script, which goes into the script that submitit writes."""
    ours = shipped_folder("sbatch_templates")
    _refuse_collisions(spec.config.launch, ours)
    return _environment(ours).get_template(f"parts/{name}").render(template_values(spec))


# Variables that the script sets, and launch.env may override.
YIELDING = {
    "OMP_NUM_THREADS",
    "PATH",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "GLOO_SOCKET_IFNAME",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
}


def _refuse_collisions(launch: LaunchConfig, folder: Path) -> None:
    """Raises ConfigError if launch.env has a variable that the script sets itself, because the user's value would not
    reach the program."""
    files = [*filter(Path.is_file, folder.rglob("*")), *Path(clusterdp.__file__).parent.glob("batch/*.bash")]
    source = "\n".join(path.read_text() for path in files)
    source += "".join(f" {name}=" for name in EXPORTED)
    keys = {name: f"launch.secret_files.{name}" for name in launch.secret_files}
    keys |= {name: f"launch.env.{name}" for name in launch.env}
    for name in keys.keys() - YIELDING:
        if re.search(rf"(?<![\w-]){name}=|\bread -r[^<\n]*\s{name}\b|\bfor {name} in\b", source):
            raise ConfigError(f"{keys[name]}: is a variable that the script sets itself. Choose another name.")


def _environment(*folders: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        finalize=_quote,  # each {{ value }} is quoted for the shell
        autoescape=False,  # escapes HTML, not shell text
        comment_start_string="{*",  # bash itself uses {#, jinja's default
        comment_end_string="*}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _quote(value: Any) -> str:
    if isinstance(value, (Shell, jinja2.Undefined)):
        return str(value)  # str() raises an error if the value is Undefined
    return shlex.quote(str(value))


def template_values(spec: ScriptSpec) -> dict[str, Any]:
    """Returns all values that a template may use."""
    config = spec.config
    script = lines_of(config.script, "script")
    setup = lines_of(config.launch.setup, "launch.setup")
    return {
        "directives": [Shell(directive(option, value)) for option, value in spec.directives()],
        "title": Shell(re.sub(r"[^\w .,:+@-]", "_", config.name)),  # safe text for a comment in the script
        "name": config.name,
        "version": Shell(clusterdp.__version__),
        **_places(spec),
        "work_dir": str(spec.work_dir),
        "python": spec.python,
        "archive": spec.archive,
        "kind": spec.kind,
        "nodes": Shell(config.resources.nodes),  # a number, or a range
        "allocated_nodes": Shell(_allocated_nodes(config.resources)),
        "spare_nodes": config.resources.spare_nodes,
        "may_lose_nodes": spec.may_lose_nodes,
        "ranks_per_node": spec.ranks_per_node,
        "cpus_per_task": config.resources.cpus_per_task,
        "fills_sockets": spec.fills_sockets,
        "foreign_variables": spec.foreign_variables(),
        "srun_flags": spec.srun_flags(),
        "kill_on_bad_exit": int(not spec.restarts_in_place),
        "warned_s": spec.warned_s,
        "container_prefix": spec.container_prefix(),
        "command": spec.command,
        "script": _quoted_lines(script),
        "env": {Shell(_name(name, spec)): value for name, value in config.launch.env.items()},
        "secrets": [Shell(name) for name in config.launch.secrets],
        "secret_files": {Shell(name): secret_path(path) for name, path in config.launch.secret_files.items()},
        "modules": config.launch.modules,
        "setup": setup and _quoted_lines(setup),
        "setup_errors": config.launch.setup_errors,
        "watches_hang": config.notify.given and "hang" in config.notify.on,
        "requeues": [Shell(line) for line in requeues_of(rules_of(spec))],
        "interpreters": dict.fromkeys([spec.host_python, *SYSTEM_PYTHONS]),
    }


def _allocated_nodes(resources: ResourcesConfig) -> str:
    """Returns the nodes of the ranks as the script's shell computes them: those of the allocation, because the request
    may have been changed on sbatch's command line or by scontrol."""
    least, spare = resources.least_nodes, resources.spare_nodes
    given = f"${{SLURM_JOB_NUM_NODES:-{resources.job_nodes}}}"
    return given if not spare else f"$(({given} - {spare}))" if resources.is_elastic else str(least)


def _name(name: str, spec: ScriptSpec) -> str:
    """Returns the name by which the script sets a variable of launch.env. On the host, PATH and LD_LIBRARY_PATH of an
    image could hide the engine itself, which would not hand them on, either."""
    return f"APPTAINERENV_{name}" if spec.container_prefix() and re.match("PATH$|LD_", name) else name


def _places(spec: ScriptSpec) -> dict[str, Any]:
    """Returns the run folder, its script and its batch program. In an array, the script's shell computes the element's
    folder."""
    folder = str(spec.run_dir)
    if spec.array is None:
        return {"run_dir": folder, "batch": f"{folder}/batch", "script_file": f"{folder}/job.sbatch", "element": False}
    offset = spec.array.offset
    element = f"$(({offset} + SLURM_ARRAY_TASK_ID))" if offset else "$SLURM_ARRAY_TASK_ID"
    return {
        "run_dir": Shell(f'{shlex.quote(folder)}/"{element}"'),
        "batch": f"{folder}/batch",
        "script_file": f"{folder}/job-{offset}.sbatch" if offset else f"{folder}/job.sbatch",
        "element": True,
    }


def directive(option: str, value: str | None) -> str:
    """Returns the words after #SBATCH for one option. Within quotes, sbatch reads a backslash as an escape and # as a
    character."""
    if value is None:
        return f"--{option}"
    if re.search(r"[\x00-\x1f\x7f]", value):
        raise ConfigError(f"#SBATCH --{option}: {value!r} has a control character, which ends the line. Remove it.")
    if re.fullmatch(r"[\w@%+=:,./-]*", value, re.ASCII):
        return f"--{option}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{option}="{escaped}"'


def _quoted_lines(lines: str) -> Shell:
    """Returns bash lines as one word of the script. (bash before 5.1 writes a here-document to a file, and goes on with
    nothing if $TMPDIR is full.)"""
    return Shell("'" + lines.replace("'", "'\\''") + "'")
