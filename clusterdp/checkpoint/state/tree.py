"""State as a tree: nested lists, tuples and dicts of JSON values and tensors, taken apart and put together again.

A tree becomes a skeleton, which is plain JSON, and the tensors that the skeleton refers to by name. A value of a type
that JSON lacks becomes an object whose first key begins with `$`:

    {"$tensor": name}    {"$array": name} (numpy)    {"$scalar": name} (numpy)    {"$float": "inf"}    {"$int": "0x..."}
    {"$tuple": [...]}    {"$size": [...]} (torch.Size)    {"$dict": [[key, value], ...]} (keys that are not plain words)
    {"$ordered": dict}   {"$counter": dict}   {"$deque": [maxlen, [...]]}
    {"$dtype": name}     {"$device": name}     {"$enum": [module, class, name]}
    {"$module": dict, "$versions": ...} (what Module.state_dict() returns)

Any other type is refused with its key, because saving it would need pickle, and reading a pickle runs code.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import torch

from clusterdp.checkpoint.format import strides
from clusterdp.checkpoint.format.layout import ITEM_SIZES
from clusterdp.errors import StateError

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_SIZES if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_DEPTH = 100  # limit of nested levels, because recursion has a limit, too; a tree that contains itself exceeds it
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_WHAT_IS_ALLOWED = (
    "State may hold tensors, numpy arrays, None, bool, int, float, str, members of enums, dtypes, devices, and lists, "
    "tuples, deques and dicts of these. "
    "Convert it in state_dict(), and back in load_state_dict()."
)


def dtype_name(tensor: torch.Tensor) -> str:
    return _NAMES[tensor.dtype]


def is_sharded(tensor: torch.Tensor) -> bool:
    """Returns whether each rank has its own part of the tensor (DTensor)."""
    if type(tensor) in _PLAIN_TENSORS:
        return False
    module = sys.modules.get("torch.distributed.tensor")  # if not imported, there are no DTensors
    return module is not None and isinstance(tensor, module.DTensor)


def is_replicated(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor is sharded, and several ranks have the same part (HSDP)."""
    return is_sharded(tensor) and any(placement.is_replicate() for placement in tensor.placements)  # type: ignore[attr-defined]


def key_of(*path: Any) -> str:
    """Returns a tensor's name: its path, as in `optimizer/state/0/exp_avg`. In the name, `~1` stands for a slash in a
    key."""
    return "/".join([_escaped(str(part)) for part in path])


@lru_cache(maxsize=4096)  # cached because a state has few different keys, which every save needs for each tensor
def _escaped(word: str) -> str:
    return word.replace("~", "~0").replace("/", "~1")


class Flattener:
    """Collects the tensors of one or more trees. Tensors in the same memory (tied weights) are kept once.

    sharded: whether the trees may hold DTensors.
    """

    def __init__(self, *, sharded: bool = False) -> None:
        self._sharded = sharded
        self.tensors: dict[str, torch.Tensor] = {}
        self.strides: dict[str, tuple[int, ...]] = {}  # strides of tensors that are not row-major
        self._names: dict[tuple[Any, ...], str] = {}

    def flatten(self, value: Any, *path: Any) -> Any:
        """Returns the skeleton of `value`, which is at `path`. Raises StateError, with the full key, for a value that
        cannot be saved."""
        return self._flatten(value, key_of(*path), _DEPTH)

    # Every save calls this for every value of the state while the training waits. Therefore frequent types are checked
    # first, and keys are built during the descent.
    def _flatten(self, value: Any, key: str, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN_TENSORS:
            return {"$tensor": self._add(value, key)}
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._add(value, key)}
        if depth == 0:
            start = "/".join(key.split("/")[:4])
            raise StateError(f"{start}/...: nested deeper than {_DEPTH}, or in itself. Flatten it in state_dict().")
        if kind is list:
            return [self._flatten(item, f"{key}/{i}", depth - 1) for i, item in enumerate(value)]
        if kind in (tuple, torch.Size):
            tag = "$tuple" if kind is tuple else "$size"
            return {tag: [self._flatten(item, f"{key}/{i}", depth - 1) for i, item in enumerate(value)]}
        if isinstance(value, dict):
            return self._flatten_dict(value, key, depth - 1)
        if kind is deque:
            return {"$deque": [value.maxlen, self._flatten([*value], key, depth)]}
        return self._flatten_rest(value, key)

    def _flatten_dict(self, value: dict[Any, Any], key: str, depth: int) -> Any:
        if type(value) not in (dict, OrderedDict, Counter):
            raise _refused(value, key, "Make it a plain dict.")
        if all(type(word) is str and not word.startswith("$") for word in value):
            plain: Any = {word: self._flatten(item, f"{key}/{_escaped(word)}", depth) for word, item in value.items()}
        else:
            plain = {
                "$dict": [
                    [_key(word, key), self._flatten(item, f"{key}/{_escaped(str(word))}", depth)]
                    for word, item in value.items()
                ]
            }
        if type(value) is Counter:
            return {"$counter": plain}
        if type(value) is OrderedDict:
            # `_metadata` has the versions of the modules' formats, which load_state_dict() needs to read the state of
            # an older torch.
            versions = getattr(value, "_metadata", None)
            if versions is None:
                return {"$ordered": plain}
            return {"$module": plain, "$versions": self._flatten(dict(versions), f"{key}/_metadata", depth)}
        return plain

    def _flatten_rest(self, value: Any, key: str) -> Any:
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):  # each rank has its own GPU
            return {"$device": "cuda" if value.type == "cuda" else str(value)}
        if isinstance(value, Enum):
            return {"$enum": [type(value).__module__, type(value).__qualname__, value.name]}
        if isinstance(value, (set, frozenset)):
            raise _refused(value, key, "Its order cannot be kept. Use a dict: dict.fromkeys(values).")
        numpy = sys.modules.get("numpy")  # if numpy is not imported, there are no arrays
        if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
            raise _refused(value, key)
        if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
            raise _refused(value, key, "Make it a plain array.")
        if value.dtype.name not in DTYPES or not value.dtype.isnative:
            raise _refused(value, key, f"Its dtype {value.dtype} has no counterpart in torch: use another.")
        tag = "$array" if isinstance(value, numpy.ndarray) else "$scalar"
        # The array is copied, because torch refuses arrays that are read-only or have negative strides.
        return {tag: self._add(torch.from_numpy(numpy.array(value, order="C")), key)}

    def _add(self, tensor: torch.Tensor, key: str) -> str:
        given, local = tensor, tensor
        if type(tensor) not in _PLAIN_TENSORS and self._sharded and is_sharded(tensor):
            local = _local(tensor, key)
        _check(local, key)
        if tensor.requires_grad:  # only if needed: detach() is slow here, and state_dict() has usually called it
            tensor = tensor.detach()
        shape = tensor.shape
        place: tuple[Any, ...] = (local.data_ptr(), tensor.device, tensor.dtype, shape, tensor.stride())
        if local is not given and is_sharded(given):
            # The key is not the address, because an empty part has no address, and all ranks must find the same tensors
            # tied.
            place = (local.untyped_storage()._cdata, local.storage_offset(), *place[2:])
        memory = (*place, local.is_conj(), local.is_neg())
        if memory in self._names and tensor.numel():
            return self._names[memory]
        while key in self.tensors:  # keys such as 0 and "0" have the same name
            key += "~2"
        self.tensors[key] = tensor
        self._names[memory] = key
        if local is given or not is_sharded(given):
            noted = strides.noted(shape, tensor.stride())
            if noted is not None:
                self.strides[key] = noted
        return key


def unflatten(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Returns the tree of a skeleton. The tree holds the given tensors, not copies. Raises ValueError on a bad
    skeleton."""
    if isinstance(skeleton, list):
        return [unflatten(item, tensors) if isinstance(item, (dict, list)) else item for item in skeleton]
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
    # The array is a copy, because an array over the buffer would keep the whole buffer alive as long as a loader keeps
    # the array.
    "$array": lambda name, tensors: tensors[name].numpy().copy(),
    "$scalar": lambda name, tensors: tensors[name].numpy()[()],
    "$float": lambda text, tensors: float(text),
    "$int": lambda text, tensors: int(text, 16),
    "$tuple": lambda items, tensors: tuple(unflatten(items, tensors)),
    "$size": lambda items, tensors: torch.Size(items),
    "$dict": lambda pairs, tensors: {unflatten(key, {}): unflatten(item, tensors) for key, item in pairs},
    "$ordered": lambda plain, tensors: OrderedDict(unflatten(plain, tensors)),
    "$counter": lambda plain, tensors: Counter(unflatten(plain, tensors)),
    "$dtype": lambda name, tensors: getattr(torch, name),
    "$device": lambda name, tensors: (
        torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)
    ),
    "$enum": lambda names, tensors: _enum_member(*names),
    "$deque": lambda pair, tensors: deque(unflatten(pair[1], tensors), pair[0]),
}


def _enum_member(module: str, path: str, name: str) -> Enum:
    """Returns a member of an Enum that the program has imported. Nothing is imported for it."""
    found: Any = sys.modules.get(module)
    for word in path.split("."):
        found = getattr(found, word, None)
    if not (isinstance(found, type) and issubclass(found, Enum) and name in found.__members__):
        raise ValueError(f"the state has {module}.{path}.{name}, which the program does not have")
    return found[name]


def _key(key: Any, within: str) -> Any:
    """Returns the key of a dict as JSON. The key must be a scalar, or a tuple of scalars."""
    scalars = key if type(key) is tuple else (key,)
    if not all(item is None or type(item) in (bool, int, float, str) for item in scalars):
        kind = type(key).__name__
        raise StateError(f"{within}: the key {key!r:.80} is a {kind}. Use str, int, float, bool or None as keys.")
    return Flattener().flatten(key)


def _local(tensor: Any, key: str) -> torch.Tensor:
    """Returns this rank's part of a DTensor."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise _refused(tensor, key, "It is a sum that is still to be done (Partial): redistribute it first.")
    return tensor.to_local()  # type: ignore[no-any-return]


def check_class(tensor: torch.Tensor, key: str) -> None:
    """Raises StateError if the tensor is of a subclass, because its bytes alone are not enough to restore it."""
    if type(tensor) not in _PLAIN_TENSORS:
        raise _refused(
            tensor, key, "Its class holds more than its values (quantized or sharded): gather it, or use another."
        )


def _check(tensor: torch.Tensor, key: str) -> None:
    check_class(tensor, key)
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise _refused(tensor, key, f"Its layout {tensor.layout} is not plain bytes: make it dense.")
    if tensor.device.type == "meta":
        raise _refused(tensor, key, "It is on the meta device and has no values: materialise it first.")
    if tensor.dtype not in _NAMES:
        raise _refused(tensor, key, f"Its dtype {tensor.dtype} is not supported: convert it.")


def _refused(value: Any, key: str, what_to_do: str = "") -> StateError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return StateError(f"{key}: a {kind} cannot be saved. {what_to_do or _WHAT_IS_ALLOWED}")


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor's bytes in row-major order (uint8, one dimension): a view if the tensor is contiguous."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    # view(-1) is not enough: a tensor of one element is contiguous with any stride, and view(dtype) refuses some
    # strides.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def memory_of(data: torch.Tensor) -> memoryview:
    """Returns a writable view of a contiguous CPU tensor's bytes, without numpy. The view keeps the tensor alive."""
    if data.numel() == 0:
        return memoryview(bytearray())  # an empty tensor's address is null, which some readers of a buffer refuse
    array = (ctypes.c_char * (data.numel() * data.element_size())).from_address(data.data_ptr())
    array._owner = data  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def copied(tensor: torch.Tensor, wanted: tuple[int, ...] | None) -> torch.Tensor:
    """Returns a copy with the strides `wanted` (strides.py), or with the tensor's own strides. A stride of 0 repeats
    one element."""
    tensor = tensor.detach()
    if wanted is None:
        return tensor.clone()
    part = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in wanted)]
    made = torch.empty_strided(part.shape, wanted, dtype=tensor.dtype, device=tensor.device).copy_(part)
    return made.expand(tensor.shape)


def cloned(tree: Any) -> Any:
    """Returns a copy of the tree, so that a part of it does not keep a mapped file or a whole buffer alive."""
    if isinstance(tree, torch.Tensor):
        return tree if is_sharded(tree) else tree.clone()
    if isinstance(tree, dict):
        return type(tree)((key, cloned(item)) for key, item in tree.items())
    if type(tree) in (list, tuple):
        return type(tree)(cloned(item) for item in tree)
    return tree


def from_bytes(data: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a view of `data` (uint8, one dimension) as a tensor."""
    return data.view(DTYPES[dtype]).reshape(shape)
