"""read_tensors(): the content of a safetensors file, a file of torch.save() or a plain pickle.

No code that a file names is run. torch.load(weights_only=True) reads a file of torch.save(), with a stand-in for each
class or function that torch refuses. In a plain pickle, which torch does not read, all names have stand-ins.
"""

from __future__ import annotations

import io
import pickle
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file

from clusterdp.errors import CheckpointError
from clusterdp.plainfile import reading
from clusterdp.rehearse.state.stored import Bytes, Stored, mapped, of_array, unreadable

_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")  # the first bytes of files that torch before 1.6 wrote
_NUMPY_DTYPE = re.compile(r"[<>=|]?[?biufcSUVmM]\d*|O8?")
_allowing = threading.Lock()  # because the names that torch allows are those of the whole process


class StandIn:
    """An object of a class that is not imported. Its fields are the arguments of its call, its items and its state."""

    fields: Any

    def __new__(cls, *args: Any, **named: Any) -> Any:
        made = object.__new__(cls)
        made.fields = {**{str(i): arg for i, arg in enumerate(args)}, **named}
        return made

    # An unpickler calls these methods on the object that it fills.
    def __setstate__(self, state: Any) -> None:
        states = state if isinstance(state, tuple) else (state,)
        if not all(each is None or isinstance(each, Mapping) for each in states):
            states = ({"state": state},)
        for each in states:  # an object with __slots__ has two states
            self.fields |= {str(key): item for key, item in (each or {}).items()}

    def __setitem__(self, key: Any, item: Any) -> None:
        self.fields[str(key)] = item

    def append(self, item: Any) -> None:
        self.fields[str(len(self.fields))] = item


class _DictStandIn(StandIn):
    """A Counter, because no other class is filled by torch with items, and with attributes, too."""

    def __new__(cls, *args: Any, **named: Any) -> Any:
        return Counter(StandIn(*args, **named).fields)


class _Array(StandIn):
    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fields = data if isinstance(data, list) else _array(data, dtype, shape, "F" if fortran else "C")


def _array(data: Any, dtype: StandIn, shape: tuple[int, ...] = (), order: Literal["C", "F"] = "C") -> Stored:
    word, byte_order = dtype.fields["0"], dtype.fields.get("state", "==")[1]
    if not _NUMPY_DTYPE.fullmatch(word):
        raise ValueError(f"{word!r:.80} is not a dtype of numpy")
    found = np.frombuffer(data, np.dtype(word).newbyteorder(">" if byte_order == ">" else "="))
    return of_array(found.reshape(shape, order=order))


# By the first part of the module's name, because numpy and Python have moved modules.
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): StandIn,
    ("numpy", "_reconstruct"): _Array,
    ("numpy", "scalar"): lambda dtype, data: _array(data, dtype),
    ("numpy", "_frombuffer"): _array,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): lambda *_: {},
    ("collections", "deque"): lambda items=(), *_: [*items],
    ("builtins", "set"): lambda items=(): set(items),
    ("builtins", "frozenset"): lambda items=(): set(items),
    ("builtins", "bytes"): lambda *_: b"",  # protocols before 3 make only empty bytes so
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
    ("datetime", "datetime"): lambda *_: "datetime.datetime",  # only the name, because the time differs in each run
    ("pathlib", "PosixPath"): lambda *parts: str(PurePosixPath(*parts)),
    # In a plain pickle, a tensor is a function of torch, and the storage is a file of torch.save().
    ("torch", "_load_from_bytes"): lambda data: torch.load(io.BytesIO(data), map_location="cpu", weights_only=True),
    ("torch", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch", "_rebuild_parameter"): torch._utils._rebuild_parameter,
}


def _stand_in(path: str, kind: type[StandIn]) -> Any:
    known = _KNOWN.get((path.partition(".")[0], path.rpartition(".")[2]), kind)
    # Each file gets its own, because a pickle may change the attributes of what it names.
    return type(path, (known,), {}) if isinstance(known, type) else lambda *args: known(*args)  # noqa: PLW0108


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _stand_in(f"{module.replace('__builtin__', 'builtins')}.{name}", StandIn)


def read_tensors(path: Path) -> tuple[Any, Callable[[Any], Any]]:
    """Returns the tree in a file, and a function that returns the value of a tensor or a stand-in in the tree.

    Raises CheckpointError, with the file's path, if the file is damaged or if torch refuses it.
    """
    try:
        file = reading(path)
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        with file:
            plain = partial(_plain, mapped(path))
            begin = file.read(len(_LEGACY))
            file.seek(0)
            if path.suffix == ".safetensors":
                return load_file(path), plain
            if begin.startswith(b"PK") or begin == _LEGACY:
                return _load(path, begin != _LEGACY), plain
            return _Unpickler(file).load(), plain
    except Exception as error:  # damaged bytes can make torch and an unpickler raise any exception
        lines = [line for line in str(error).splitlines() if line and not line.startswith("Check the documentation")]
        reason = lines[-1].rpartition("WeightsUnpickler error: ")[2].strip(" .") if lines else type(error).__name__
        raise CheckpointError(
            f"{path}: it is damaged, or only the code that it names can read it: {reason}. Save it again, with only "
            "tensors and plain values and the default pickle_protocol, or compare another file."
        ) from None


def _load(path: Path, is_zip: bool) -> Any:
    with _allowing:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path) if is_zip else []

        def load(kind: type[StandIn]) -> Any:
            with torch.serialization.safe_globals([(_stand_in(name, kind), name) for name in names]):
                # A mapped file takes no memory until its tensors are compared.
                return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)

        try:
            return load(StandIn)
        except pickle.UnpicklingError:
            return load(_DictStandIn)


def _plain(must_be_unchanged: Callable[[], None], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            return _stored(must_be_unchanged, value.detach().resolve_conj().resolve_neg())
        sparse = value.to_sparse(layout=torch.sparse_coo)
        return {"indices": sparse._indices(), "values": sparse._values()}
    if torch.is_storage(value):
        raise ValueError("it holds a storage without a shape; a tensor of it can be compared")
    if isinstance(value, StandIn):
        return value.fields or type(value).__name__
    if isinstance(value, Counter):
        return {**value, **vars(value)}
    return value.__name__ if isinstance(value, type) else value


def _stored(must_be_unchanged: Callable[[], None], tensor: torch.Tensor) -> Stored:
    # A dimension with stride 0 (made by expand()) repeats one element, which is read only once.
    shape, strides = tuple(tensor.shape), [stride or 1 for stride in tensor.stride()]
    sizes = [size if stride else 1 for size, stride in zip(shape, tensor.stride(), strict=True)]

    def read() -> Bytes:
        must_be_unchanged()
        data: Bytes = tensor.as_strided(sizes, strides).contiguous().reshape(-1).view(torch.uint8).numpy()
        return data

    return Stored(str(tensor.dtype).removeprefix("torch."), shape, read)
