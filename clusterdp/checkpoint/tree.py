"""State as a tree: nested lists, tuples and dicts of JSON values and tensors, taken apart and put together again.

A tree becomes a skeleton, which is plain JSON, and the tensors that it refers to by name. What JSON does not have is an
object with one key that begins with `$`:

    {"$tensor": name}    {"$array": name} (numpy)    {"$scalar": name} (numpy)    {"$float": "inf"}    {"$int": "0x..."}
    {"$tuple": [...]}    {"$size": [...]} (torch.Size)    {"$dict": [[key, value], ...]} (keys that are not plain words)
    {"$ordered": dict}   {"$counter": dict}    {"$module": dict, "$versions": ...} (what Module.state_dict() returns)

Anything else is refused with its key: it would have to be pickled, and reading a pickle runs code.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from clusterdp.checkpoint.layout import ITEM_SIZES
from clusterdp.errors import StateError

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_SIZES if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_DEPTH = 100  # deeper than any state, shallow enough for Python's stack: it ends a tree that contains itself
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_WHAT_IS_ALLOWED = (
    "State may hold tensors, numpy arrays, None, bool, int, float, str, and lists, tuples and dicts of these. "
    "Convert it in state_dict(), and back in load_state_dict()."
)


def dtype_name(tensor: torch.Tensor) -> str:
    return _NAMES[tensor.dtype]


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether each rank has its own part of it (DTensor)."""
    if type(tensor) in _PLAIN_TENSORS:
        return False
    module = sys.modules.get("torch.distributed.tensor")  # what is not loaded has made none
    return module is not None and isinstance(tensor, module.DTensor)


def key_of(*path: Any) -> str:
    """A tensor's name: the keys that lead to it, `optimizer/state/0/exp_avg`; `~1` stands for a slash in a key."""
    return "/".join([_escaped(str(part)) for part in path])


@lru_cache(maxsize=4096)  # the words of one state are few, and every save needs them for each tensor
def _escaped(word: str) -> str:
    return word.replace("~", "~0").replace("/", "~1")


class Flattener:
    """Collects the tensors of one or more trees. Tensors that are the same memory (tied weights) are kept once.

    sharded: DTensors may be among them.
    """

    def __init__(self, *, sharded: bool = False) -> None:
        self._sharded = sharded
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def flatten(self, value: Any, *path: Any) -> Any:
        """The skeleton of `value`, which is found at `path`; raises StateError with the full key."""
        if len(path) > _DEPTH:
            raise StateError(
                f"{key_of(*path[:4])}/...: nested deeper than {_DEPTH}, or in itself. Flatten it in state_dict()."
            )
        if type(value) in _PLAIN_TENSORS:
            return {"$tensor": self._add(value, path)}
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is int:
            return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._add(value, path)}
        if type(value) is list:
            return [self.flatten(item, *path, i) for i, item in enumerate(value)]
        if type(value) in (tuple, torch.Size):
            tag = "$tuple" if type(value) is tuple else "$size"
            return {tag: [self.flatten(item, *path, i) for i, item in enumerate(value)]}
        if isinstance(value, dict):
            return self._flatten_dict(value, path)
        return self._flatten_numpy(value, path)

    def _flatten_dict(self, value: dict[Any, Any], path: tuple[Any, ...]) -> Any:
        if type(value) not in (dict, OrderedDict, Counter):
            raise _refused(value, path, "Make it a plain dict.")
        if all(type(key) is str and not key.startswith("$") for key in value):
            plain: Any = {key: self.flatten(item, *path, key) for key, item in value.items()}
        else:
            plain = {"$dict": [[_key(key, path), self.flatten(item, *path, key)] for key, item in value.items()]}
        if type(value) is Counter:
            return {"$counter": plain}
        if type(value) is OrderedDict:
            # Versions of the modules' formats: their load_state_dict needs them to read what an older torch has saved.
            versions = getattr(value, "_metadata", None)
            if versions is None:
                return {"$ordered": plain}
            return {"$module": plain, "$versions": self.flatten(dict(versions), *path, "_metadata")}
        return plain

    def _flatten_numpy(self, value: Any, path: tuple[Any, ...]) -> Any:
        numpy = sys.modules.get("numpy")  # what is not loaded has made no arrays
        if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
            raise _refused(value, path)
        if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
            raise _refused(value, path, "Make it a plain array.")
        if value.dtype.name not in DTYPES or not value.dtype.isnative:
            raise _refused(value, path, f"Its dtype {value.dtype} has no counterpart in torch: use another.")
        tag = "$array" if isinstance(value, numpy.ndarray) else "$scalar"
        # A copy: it may be read-only or strided backwards, which torch does not take.
        return {tag: self._add(torch.from_numpy(numpy.array(value, order="C")), path)}

    def _add(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> str:
        given, local = tensor, tensor
        if type(tensor) not in _PLAIN_TENSORS and self._sharded and is_sharded(tensor):
            local = _local(tensor, path)
        _check(local, path)
        tensor = tensor.detach()
        place: tuple[Any, ...] = (tensor.device, local.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if local is not given and is_sharded(given):
            # Not the address: a rank whose part is empty has none, and all ranks must find the same tensors tied.
            place = (local.untyped_storage()._cdata, local.storage_offset(), *place[2:])
        memory = (*place, local.is_conj(), local.is_neg())
        if tensor.numel() and memory in self._names:
            return self._names[memory]
        name = key_of(*path)
        while name in self.tensors:  # {0: ..., "0": ...}
            name += "~2"
        self.tensors[name] = tensor
        self._names[memory] = name
        return name


def unflatten(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The tree that was taken apart. Its tensors are those given, not copies. Raises ValueError on a bad skeleton."""
    if isinstance(skeleton, list):
        return [unflatten(item, tensors) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    tag = next(iter(skeleton), "")
    if not tag.startswith("$"):
        return {key: unflatten(item, tensors) for key, item in skeleton.items()}
    if tag == "$module":
        module: OrderedDict[Any, Any] = OrderedDict(unflatten(skeleton["$module"], tensors))
        module._metadata = OrderedDict(unflatten(skeleton["$versions"], tensors))  # type: ignore[attr-defined]
        return module
    try:
        return _BUILDERS[tag](skeleton[tag], tensors)
    except KeyError as error:
        raise ValueError(f"the state refers to {error}, which is not there") from error


_BUILDERS: dict[str, Callable[[Any, Mapping[str, torch.Tensor]], Any]] = {
    "$tensor": lambda name, tensors: tensors[name],
    # Copies: an array would keep the whole buffer alive, and a loader may hold on to it.
    "$array": lambda name, tensors: tensors[name].numpy().copy(),
    "$scalar": lambda name, tensors: tensors[name].numpy()[()],
    "$float": lambda text, tensors: float(text),
    "$int": lambda text, tensors: int(text, 16),
    "$tuple": lambda items, tensors: tuple(unflatten(items, tensors)),
    "$size": lambda items, tensors: torch.Size(items),
    "$dict": lambda pairs, tensors: {unflatten(key, {}): unflatten(item, tensors) for key, item in pairs},
    "$ordered": lambda plain, tensors: OrderedDict(unflatten(plain, tensors)),
    "$counter": lambda plain, tensors: Counter(unflatten(plain, tensors)),
}


def _key(key: Any, path: tuple[Any, ...]) -> Any:
    """A dict's key as JSON. Tuples of scalars are keys too."""
    scalars = key if type(key) is tuple else (key,)
    if not all(item is None or type(item) in (bool, int, float, str) for item in scalars):
        kind = type(key).__name__
        raise StateError(
            f"{key_of(*path)}: the key {key!r:.80} is a {kind}. Use str, int, float, bool or None as keys."
        )
    return Flattener().flatten(key)


def _local(tensor: Any, path: tuple[Any, ...]) -> torch.Tensor:
    """This rank's part of a DTensor."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise _refused(tensor, path, "It is a sum that is still to be done (Partial): redistribute it first.")
    return tensor.to_local()  # type: ignore[no-any-return]


def _check(tensor: torch.Tensor, path: tuple[Any, ...]) -> None:
    if type(tensor) not in _PLAIN_TENSORS:
        raise _refused(tensor, path, "Tensors that are sharded or not plain are not supported: gather it, or use DDP.")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise _refused(tensor, path, f"Its layout {tensor.layout} is not plain bytes: make it dense.")
    if tensor.device.type == "meta":
        raise _refused(tensor, path, "It is on the meta device and has no values: materialise it first.")
    if tensor.dtype not in _NAMES:
        raise _refused(tensor, path, f"Its dtype {tensor.dtype} is not supported: convert it.")


def _refused(value: Any, path: tuple[Any, ...], what_to_do: str = "") -> StateError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return StateError(f"{key_of(*path)}: a {kind} cannot be saved. {what_to_do or _WHAT_IS_ALLOWED}")


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in order of its elements, as one dimension of uint8: a view wherever it is contiguous."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    # Not view(-1): one element counts as contiguous whatever its stride, and then view(dtype) refuses it.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def memory_of(data: torch.Tensor) -> memoryview:
    """A writable view of a contiguous CPU tensor's bytes, without numpy. It keeps the tensor alive."""
    if data.numel() == 0:
        return memoryview(bytearray())  # its address is null, which not every reader of a buffer takes
    array = (ctypes.c_char * (data.numel() * data.element_size())).from_address(data.data_ptr())
    array._owner = data  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def from_bytes(data: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The view of `data` (one dimension of uint8) as a tensor."""
    return data.view(DTYPES[dtype]).reshape(shape)
