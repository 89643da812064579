"""Reads tables that ship with scikit-learn, from the files in its folder, because importing scikit-learn would load
scipy, too."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy
import torch

from clusterdp.errors import ConfigError


def table(name: str, delimiter: str | None = ",") -> torch.Tensor:
    """Returns the rows of a file in sklearn/datasets/data, such as digits.csv.gz, in float32."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ConfigError(f"{name}: scikit-learn, which has it, is not installed. pip install 'clusterdp[demo]'.")
    file = Path(package.origin).parent / "datasets" / "data" / name
    try:
        return torch.from_numpy(numpy.loadtxt(file, delimiter=delimiter, dtype=numpy.float32))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}. Install scikit-learn again.") from None


def diabetes() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (features, target) of 442 people: ten measurements (age, sex, bmi, blood pressure, six of the serum), and
    the progress of their disease. Features and target are standardised. Efron et al., Least Angle Regression, 2004.
    """
    features, target = table("diabetes_data_raw.csv.gz", None), table("diabetes_target.csv.gz", None)
    return (features - features.mean(0)) / features.std(0), (target - target.mean()) / target.std()
