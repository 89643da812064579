"""Files of safetensors and numpy as trees of tensors that stay in the file."""

from __future__ import annotations

import json
import math
import zipfile
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from clusterdp.checkpoint.format.layout import SAFETENSORS
from clusterdp.errors import CheckpointError
from clusterdp.plainfile import MOST, reading
from clusterdp.rehearse.state.stored import ReadRange, Stored, of_array, read_range, unreadable

_DTYPES = {word: name for name, word in SAFETENSORS.items()}


def read_safetensors(path: Path, read_bytes: ReadRange = read_range) -> dict[str, Stored]:
    """read_bytes: of tensors. Raises CheckpointError, which names the file."""
    try:
        size = path.stat().st_size
        length = int.from_bytes(read_range(path, 0, 8).tobytes(), "little")
        if length > min(size, MOST):
            raise ValueError(f"its header would have {length} bytes")
        header = json.loads(read_range(path, 8, length).tobytes())
        begin = 8 + length
        found = {}
        for name, about in header.items():
            if name != "__metadata__":
                start, stop = about["data_offsets"]
                if not 0 <= start <= stop <= size - begin:
                    raise ValueError(f"{name} reaches out of the file")
                dtype = _DTYPES.get(about["dtype"], about["dtype"])
                read = partial(read_bytes, path, begin + start, stop - start)
                found[name] = Stored(dtype, tuple(about["shape"]), read)
        return found
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: no safetensors file, or a damaged one: {error}. Save it again.") from None


def read_numpy(path: Path) -> Any:
    """Of a .npy one Stored, of a .npz one for each name. Raises CheckpointError, which names the file."""
    try:
        if path.suffix == ".npy":
            with reading(path) as file:
                dtype, shape, fortran = _header(file)
                size = dtype.itemsize * math.prod(shape)
                if fortran or not dtype.isnative:
                    return of_array(read_range(path, file.tell(), size), dtype, shape, fortran)
                return Stored(dtype.name, shape, partial(read_range, path, file.tell(), size))
        with reading(path) as file, zipfile.ZipFile(file) as archive:
            return {name.removesuffix(".npy"): _member(archive, name) for name in archive.namelist()}
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, EOFError, RecursionError, NotImplementedError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: no file of numpy, or a damaged one: {error}. Save it again.") from None


def _member(archive: zipfile.ZipFile, name: str) -> Stored:
    with archive.open(name) as file:
        dtype, shape, fortran = _header(file)
        return of_array(file.read(), dtype, shape, fortran)


def _header(file: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds objects, which numpy pickles")
    return dtype, shape, fortran
