"""Reads pickles without running any code that they name.

Each class or function that a pickle names is replaced by an Inert subclass made for that name. A call of this subclass
only keeps the arguments, and nothing is imported. PlainValues turns objects of known classes into values.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from clusterdp.checkpoint.format.layout import ITEM_SIZES
from clusterdp.rehearse.state.stored import Bytes, Stored, of_array, strided

_STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip
# From a storage's key to (the function that reads its bytes from (first byte, number of bytes), the storage's size).
Storages = Callable[[str], tuple[Callable[[int, int], Bytes], int]]
_NUMPY_DTYPE = re.compile(r"[<>=|]?[?biufcSUVmM]\d*|O8?")


class Inert:
    """The object that a pickle would have made by calling `path` with `args`, and the state that it would have put into
    the object."""

    path = ""
    args: tuple[Any, ...]
    named: dict[str, Any]
    listed: list[Any]
    items: dict[Any, Any]
    state: Any

    def __new__(cls, *args: Any, **named: Any) -> Inert:
        made = object.__new__(cls)
        made.args, made.named, made.listed, made.items, made.state = args, named, [], {}, None
        return made

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    # An unpickler calls these methods on the object that it fills.
    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.listed.append(item)

    add = append

    def extend(self, items: Iterable[Any]) -> None:
        self.listed.extend(items)

    def __setitem__(self, key: Any, item: Any) -> None:
        self.items[key] = item


class InertStorage:
    """The persistent id of a storage in a pickle. In files of torch.save(), the id is ("storage", type, key, location,
    number of elements)."""

    def __init__(self, about: Any):
        self.about = about


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes):
        # The encoding is latin1, because strings of Python 2 are bytes, and latin1 loses no byte.
        super().__init__(io.BytesIO(data), encoding="latin1")
        self._made: dict[str, type[Inert]] = {}

    def find_class(self, module: str, name: str) -> type[Inert]:
        # A class, because the opcode NEWOBJ needs one. Each name gets its own, because BUILD may change the class.
        path = f"{module}.{name}"
        if path not in self._made:
            self._made[path] = type("Inert", (Inert,), {"path": path})
        return self._made[path]

    def persistent_load(self, pid: Any) -> InertStorage:
        return InertStorage(pid)


def load(data: bytes) -> Any:
    """Returns the tree in a pickle: plain values, and Inert and InertStorage objects. Raises ValueError if the data are
    damaged."""
    try:
        return _Unpickler(data).load()
    except MemoryError:
        raise ValueError("it asks for more memory than there is") from None
    except Exception as error:  # damaged bytes can make an unpickler raise any exception
        raise ValueError(f"{error}" or type(error).__name__) from None


class PlainValues:
    """Turns Inert objects into the values that they stand for. An object of an unknown class stays as it is."""

    def __init__(self, storages: Storages | None = None):
        self._storages = storages

    def of(self, value: Any) -> Any:
        """Returns the value for which an Inert object stands. Raises ValueError or another error of Python if the
        object's arguments do not fit its class."""
        if isinstance(value, InertStorage):
            return self._tensor(value, 0, None, None)
        if isinstance(value, type) and issubclass(value, Inert):
            return value.path
        if not isinstance(value, Inert):
            return value
        module, _, name = value.path.rpartition(".")
        if module in ("torch._utils", "torch._tensor", "torch"):
            return self._of_torch(value, name)
        if module.startswith("numpy"):
            return self._of_numpy(value, name)
        known = _PYTHON.get(value.path)
        return known(value) if known else value

    def _of_torch(self, value: Inert, name: str) -> Any:
        args = value.args
        if name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            storage, start, shape, strides = args[:4]
            dtype = args[6].path.rpartition(".")[2] if name == "_rebuild_tensor_v3" else None
            return self._tensor(storage, start, shape, strides, dtype)
        if name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
            return self.of(args[0])
        if name == "_rebuild_from_type_v2":  # this rebuilds a tensor with attributes, or of a subclass
            return self.of(args[0](*args[2]))
        if name == "Size":
            return args[0]
        return ":".join(map(str, args)) if name == "device" else value

    def _tensor(self, storage: InertStorage, start: int, shape: Any, strides: Any, dtype: str | None = None) -> Stored:
        if self._storages is None:
            raise ValueError("it holds tensors whose bytes are elsewhere")
        _, kind, key, _, _ = storage.about
        dtype = dtype or _STORAGES[kind.path.rpartition(".")[2]]
        read, nbytes = self._storages(key)
        room = nbytes // ITEM_SIZES[dtype]
        shape, strides = ((room,), (1,)) if shape is None else (_numbers(self.of(shape)), _numbers(self.of(strides)))
        return Stored(dtype, shape, strided(read, ITEM_SIZES[dtype], start, shape, strides, room))

    def _of_numpy(self, value: Inert, name: str) -> Any:
        args = [self.of(arg) for arg in value.args]
        if name == "scalar":
            return of_array(args[1], self._dtype(value.args[0]), ())
        if name == "_frombuffer":
            return of_array(args[0], self._dtype(value.args[1]), _numbers(args[2]), args[3] == "F")
        if name == "_reconstruct" and isinstance(value.state, tuple):
            _, shape, dtype, fortran, data = value.state
            data = self.of(data)
            if isinstance(data, list):
                return data  # data is an array of objects
            return of_array(data, self._dtype(dtype), _numbers(shape), bool(fortran))
        return self._dtype(value).name if name == "dtype" else value

    def _dtype(self, value: Any) -> np.dtype[Any]:
        word = value if isinstance(value, str) else value.args[0]
        if not _NUMPY_DTYPE.fullmatch(word):
            raise ValueError(f"{word!r:.80} is not a dtype of numpy")
        order = value.state[1] if isinstance(value, Inert) and value.state else "="
        found: np.dtype[Any] = np.dtype(word)
        return found.newbyteorder(">") if order == ">" else found


def _numbers(value: Any) -> tuple[int, ...]:
    found = tuple(value)
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in found):
        raise ValueError(f"{value!r:.80} is not a shape")
    return found


def _encoded(value: Inert) -> Any:
    text, encoding = value.args
    return text.encode("latin1") if encoding == "latin1" else value


_PYTHON: dict[str, Callable[[Inert], Any]] = {
    "collections.OrderedDict": lambda made: {**dict(*made.args), **made.items},
    "collections.defaultdict": lambda made: made.items,
    "collections.Counter": lambda made: {**dict(*made.args), **made.items},
    "collections.deque": lambda made: [*(made.args[0] if made.args else ()), *made.listed],
    "_codecs.encode": _encoded,
    "datetime.datetime": lambda made: made.path,  # only the name, because the time differs in each run
    **{
        f"{module}.{name}": lambda made: set(made.args[0]) if made.args else set()
        for module in ("builtins", "__builtin__")
        for name in ("set", "frozenset")
    },
    **{
        f"{module}.{name}": lambda made: bytes(made.args[0]) if made.args and type(made.args[0]) is bytes else b""
        for module in ("builtins", "__builtin__")
        for name in ("bytearray", "bytes")
    },
    **{f"pathlib.{name}": lambda made: "/".join(map(str, made.args)) for name in ("PosixPath", "PurePosixPath")},
}
