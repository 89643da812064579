"""`load`: builds the config of a run from its layers.

Precedence, weakest first: the defaults of the tree, the site profile, the file, `key=value` words of the command line.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from clusterdp.config.after import read_after
from clusterdp.config.tree import Config, SiteConfig
from clusterdp.config.value_types import misfits, without_none
from clusterdp.errors import ConfigError
from clusterdp.plainfile import read_plain
from clusterdp.site_profile import site_profile

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from omegaconf import DictConfig

Kind = TypeVar("Kind", bound="DataclassInstance")
PACKAGE = Path(__file__).resolve().parents[1]
PROFILE_ALONE = ("on", "remote")  # keys of the site profile that say on which machine the verbs run
BLOCKS = ("grid", "zip", "points", "random")  # blocks of `sweep:`; a sweep has one or more of them


@dataclass(frozen=True)
class Loaded:
    """A config, and the source of each value that is not a default: dotted key -> `cfg.yaml:7`."""

    config: Config
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """The merged layers of a config, whose types are checked, but whose `${...}` are not resolved yet."""

    values: dict[str, Any]
    sources: Mapping[str, str]
    folder: Path | None = None  # the folder of the config file

    @property
    def sweeps(self) -> bool:
        """Whether the config describes a sweep, which is several runs."""
        return any((self.values.get("sweep") or {}).get(block) for block in BLOCKS)

    def importable(self, entry: str | None) -> str | None:
        """Returns `configs.gan:main` for the entry `gan:main` if gan.py is beside the config, and not in the submit
        directory. The config's folder must be below a folder from which ranks import: the submit directory, or the
        folder in which clusterdp is installed. Any other entry is returned unchanged."""
        file = (entry or "").partition(":")[0].replace(".", "/")
        if entry and self.folder and _is_module(self.folder / file) and not _is_module(Path(file)):
            folder = self.folder.resolve()
            for root in (Path.cwd(), PACKAGE.parent):
                if folder.is_relative_to(root) and all(map(str.isidentifier, folder.relative_to(root).parts)):
                    return ".".join([*folder.relative_to(root).parts, entry])
        return entry


def _is_module(path: Path) -> bool:
    return os.path.isfile(f"{path}.py") or os.path.isfile(path / "__init__.py")


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Returns the config of a YAML file and `key=value` words. A ConfigError names file, line, key, mistake and
    remedy."""
    return load_with_sources(path, overrides).config


def load_with_sources(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Loaded:
    return resolve(read(path, overrides))


def from_mapping(values: Mapping[str, Any], overrides: Sequence[str] = (), place: str = "Python") -> Config:
    """Returns the config of a plain dictionary from Python code. `place` names the source of the dictionary, for
    messages."""
    return resolve(read(values, overrides, place=place)).config


def from_resolved(values: Mapping[str, Any], overrides: Sequence[str] = (), place: str = "Python") -> Config:
    """Returns the config of values that were resolved before. Such values contain no interpolation: a `${HOME}` is
    meant for a shell, and stays. The command is not checked again for shell syntax, because a `&` may come from a
    param."""
    given = read(_escaped(values), overrides, place=place)
    return resolve(given, judged=place).config


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value


def read(
    what: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    place: str = "Python",
) -> Given:
    """Returns the merged layers of a YAML file or a dictionary. `sweeps` has the words `KEY=VALUES` of `--sweep`.
    `place` names the source of a dictionary."""
    from clusterdp.config import files

    profile = site_profile()
    layers = [files.read_file(profile, SiteConfig) if profile else files.Layer()]
    for key in PROFILE_ALONE:
        layers[0].values.pop(key, None)
    folder = None if isinstance(what, Mapping) else Path(what).parent
    if isinstance(what, Mapping):
        layers.append(files.read_mapping(what, Config, place))
    else:
        layers.append(files.read_file(Path(what), Config, name=Path(what).stem))
    layers.append(files.read_words(overrides, Config))
    if sweeps:
        from clusterdp.config.swept_values import read_sweeps

        layers.append(read_sweeps(sweeps))
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for each in layers:
        files.merge(values, each.values, each.dotted)
        sources |= each.sources
    return Given(values, sources, folder)


def resolve(given: Given, judged: str = "") -> Loaded:
    """Returns the config: OmegaConf resolves `${...}`, and converts what they give to the types of the tree. Then
    clusterdp's own checks run.

    judged: the place of a command that is not checked again for shell syntax."""
    from clusterdp.config import checks

    if "after" in given.values:
        values = {**given.values, "after": read_after(given.values["after"], given.sources.get("after", ""))}
        given = dataclasses.replace(given, values=values)
    if (place := given.sources.get("command", "")) != judged:
        refuse_shell_text(given.values.get("command"), place)
    texts = list(_texts(given.values))
    for key, text in texts:
        if text == "???":
            raise ConfigError(f"{key}: has no value (???). Give one: {key}=VALUE.")
    try:
        if any("${" in text for _, text in texts):
            raise _OmegaConfNeeded
        config: Config = converted(given.values, Config)
    except _OmegaConfNeeded:
        config = _interpolated(given)
    config.command, config.script = as_words(config.command), as_words(config.script)
    checks.check(config, given.sources)
    config.entry = given.importable(config.entry)
    return Loaded(config, given.sources)


def _interpolated(given: Given) -> Config:
    from omegaconf import OmegaConf  # imported here, because the import takes 80 ms
    from omegaconf.errors import OmegaConfBaseException

    try:
        found: Config = OmegaConf.to_object(merged(given))  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise explain(error, given.sources) from None
    return found


class _OmegaConfNeeded(Exception):
    """Raised for a value that only OmegaConf can convert, or refuse: an interpolation, or a swept value of another
    type."""


def converted(value: Any, hint: Any, make: Callable[..., Any] | None = None) -> Any:
    """Returns a copy of the value in the type of its key, as OmegaConf makes it: a section with its defaults, and a
    float for a whole number. make: makes the section; may have other defaults than its class."""
    if not isinstance(value, (list, Mapping)) and next(misfits(value, hint, ""), None) is not None:
        raise _OmegaConfNeeded
    _, hint = without_none(hint)
    kinds = typing.get_args(hint) or (Any,)  # of a list's items, or of a mapping's keys and values
    if isinstance(value, list):
        return [converted(each, kinds[0]) for each in value]
    if not isinstance(value, Mapping):
        return float(value) if hint is float and isinstance(value, int) else value
    if not dataclasses.is_dataclass(hint):
        return {name: converted(each, kinds[-1]) for name, each in value.items()}
    hints = typing.get_type_hints(hint)
    makers: dict[str, Any] = {each.name: each.default_factory for each in dataclasses.fields(hint)}
    build: Callable[..., Any] = make or typing.cast("type[Any]", hint)
    return build(**{name: converted(each, hints[name], makers[name]) for name, each in value.items()})


def refuse_shell_text(command: Any, place: str) -> None:
    """Raises ConfigError if a command has shell syntax. `command` is the value as written in the config; a list of
    words may have any text."""
    if not isinstance(command, str):
        return
    from clusterdp.config.secrets import holds_secret
    from clusterdp.config.shell_words import for_a_shell

    if (found := for_a_shell(command)) and not holds_secret(command):  # secrets are refused elsewhere
        raise ConfigError(f"{place}: command: {found[0]}. {found[1]}.")


def as_words(value: Any) -> Any:
    """Returns the words of `command:` as text. The conversion is needed because a word that is only `${params.lr}`
    resolves to a number."""
    if not isinstance(value, list):
        return value
    return [str(word) if isinstance(word, (int, float)) else word for word in value]


def merged(given: Given) -> DictConfig:
    """Returns OmegaConf's tree of the given values and the defaults. Raises OmegaConf's errors, which explain() turns
    into ConfigErrors."""
    from omegaconf import OmegaConf

    # The merge is unsafe, because it makes no copies; this is safe here, because no other code uses these trees.
    schema = OmegaConf.structured(Config, flags={"no_deepcopy_set_nodes": True})
    return cast("DictConfig", OmegaConf.unsafe_merge(schema, OmegaConf.create(given.values)))


def _texts(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Yields (dotted key, text) of every text in `value`."""
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(each, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _texts(each, f"{at}[{number}]")


def explain(error: Exception, sources: Mapping[str, str]) -> ConfigError:
    """Returns an error of OmegaConf as a ConfigError in one line, with the place and the remedy."""
    key = str(getattr(error, "full_key", None) or getattr(error, "key", None) or "config")
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    place = f"{sources[key]}: " if key in sources else ""
    if "after.run_dir" in said:
        return ConfigError(f"{place}{key}: ${{after.run_dir}}: no run is named. Write after: RUN, or --after RUN.")
    missing = re.search(r"(?:Interpolation key '|Unsupported interpolation type )([A-Za-z_]\w*)(?:' not found|$)", said)
    if missing:
        name = missing[1]
        return ConfigError(
            f"{place}{key}: ${{{name}}} names no key of this file. If it is a variable of the shell, write ${{oc.env:"
            f"{name}}} to fill it in at submit, or \\${{{name}}} to leave it to the shell (script:, launch.setup:)."
        )
    if "Grammar" in type(error).__name__ or re.search(r"Interpolation key '[^']*[^\w.'][^']*' not found", said):
        return ConfigError(f"{place}{key}: has a ${{...}} that is not an interpolation. For a shell, write \\${{...}}.")
    return ConfigError(f"{place}{key}: {said.rstrip('.')}. Correct the value.")


def dump(config: Config, known: dict[str, tuple[Any, str]] | None = None) -> str:
    """Returns the resolved config as YAML text, which `read_resolved` reads back.

    known: cache of sections that were dumped before, with their texts. Saves time for configs that share most sections.
    """
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # C code: takes a fifth of the time
    known = {} if known is None else known
    names = [each.name for each in dataclasses.fields(config) if each.name != "defaults"]  # merged already
    for name in names:
        value = getattr(config, name)
        if name not in known or known[name][0] is not value:
            plain = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
            text = yaml.dump({name: plain}, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)
            known[name] = (value, text)
    return "".join(known[name][1] for name in names)


def from_plain(kind: type[Kind], values: Mapping[str, Any], unknown: list[str] | None = None, at: str = "") -> Kind:
    """Returns a Config, or one section of a Config, made from the plain dictionaries of `read_resolved`. Values are
    taken over without conversion.

    A missing key gets its default, and so does a section that is null. The dotted name of a key that `kind` does not
    have is appended to `unknown`. at: the dotted name of the section itself, with a dot at its end.
    Raises ConfigError for a section that is not a mapping.
    """
    given: dict[str, Any] = {}
    kinds = {each.name: each.default_factory for each in dataclasses.fields(kind)}
    for name, value in values.items():
        section = kinds.get(name)
        section = getattr(section, "func", section)  # a partial is a section's class with other defaults
        if section is None:
            if unknown is not None:
                unknown.append(f"{at}{name}")
        elif isinstance(section, type) and dataclasses.is_dataclass(section):
            if not isinstance(value or {}, Mapping):
                raise ConfigError(f"{at}{name}: is {value!r}, and no section. Put back what submit wrote there.")
            given[name] = from_plain(section, value or {}, unknown, f"{at}{name}.")
        elif value is not None or section is dataclasses.MISSING:
            given[name] = value
    return kind(**given)


def read_resolved(path: Path) -> dict[str, Any]:
    """Returns a config that `dump` wrote, as plain dictionaries and lists, so that the compute node need not import
    omegaconf. Raises ConfigError if the file is not such a config."""
    import yaml

    from clusterdp.config.files import compose

    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = kind("")
    try:
        node = compose(read_plain(path).decode(), kind, str(path))
        return {str(key): value for key, value in dict(loader.construct_document(node)).items()}
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: is not the config of a run. Put back what submit wrote there.") from None
    finally:
        loader.dispose()
