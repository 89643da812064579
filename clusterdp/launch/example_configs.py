"""The example configs: configs/ of a checkout, which lies inside the package once that is installed from a wheel."""

from __future__ import annotations

from pathlib import Path

from clusterdp.errors import ConfigError


def config_folder() -> Path:
    package = Path(__file__).resolve().parent.parent
    return next(f for f in (package / "configs", package.parent / "configs") if f.is_dir())


def find_config(name: str) -> Path:
    """The file of `digits`, `digits.yaml` or `configs/digits.yaml`."""
    stem = Path(name).name.removesuffix(".yaml")
    path = config_folder() / f"{stem}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in config_folder().glob("*.yaml")))
        raise ConfigError(f"{name}: no such file, and no example config of that name: {known}. Name a YAML file.")
    return path
