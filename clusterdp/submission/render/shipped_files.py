"""Finds the example configs and the script templates: in a wheel in the package, in a checkout beside it."""

from __future__ import annotations

import re
from pathlib import Path

from clusterdp.errors import ConfigError


def shipped_folder(name: str) -> Path:
    """Returns the path of the folder `configs` or `sbatch_templates`."""
    package = Path(__file__).resolve().parents[2]
    return next(folder for folder in (package / name, package.parent / name) if folder.is_dir())


def find_config(name: str) -> Path:
    """Returns the file of an example config, which is named as `digits`, `digits.yaml` or `configs/digits.yaml`."""
    stem = Path(name).name.removesuffix(".yaml")
    configs = shipped_folder("configs")
    path = configs / f"{stem}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in configs.glob("*.yaml")))
        raise ConfigError(f"{name}: no such file, and no example config of that name: {known}. Name a YAML file.")
    return path


def example_files(name: str) -> list[Path]:
    """Returns the file of an example config and, if its entry names no package, the program beside the config."""
    config = find_config(name)
    module = re.search(r"^entry: (\w+):", config.read_text(), re.MULTILINE)
    return [config, config.with_name(f"{module[1]}.py")] if module else [config]
