"""The pickle in a file of torch.save's, put together from a skeleton. Nothing is pickled, and torch is not needed.

The opcodes (protocol 2; pickletools describes them) are those that torch's restricted reader takes, which is what
`torch.load(weights_only=True)` uses.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Mapping
from typing import Any

from clusterdp.checkpoint.format.layout import Entry
from clusterdp.checkpoint.format.skeleton import TENSORS, key_from, tag_of
from clusterdp.errors import StateError

# The dtypes that have a storage class of their own; those that came later name their dtype beside an untyped one.
STORAGES = {
    "bool": "BoolStorage", "uint8": "ByteStorage", "int8": "CharStorage", "int16": "ShortStorage",
    "int32": "IntStorage", "int64": "LongStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage",
    "float32": "FloatStorage", "float64": "DoubleStorage", "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}  # fmt: skip


class Pickle:
    """`keys` says of each tensor met so far which record of the archive holds its bytes."""

    def __init__(self, entries: Mapping[str, Entry]):
        self.keys: dict[str, str] = {}
        self._entries = entries
        self._out = bytearray(pickle.PROTO + b"\x02")

    def finish(self) -> bytes:
        return bytes(self._out + pickle.STOP)

    def add(self, value: Any) -> None:
        """A skeleton, or a tuple of them."""
        tag = tag_of(value)
        if tag is not None:
            self._add_tagged(tag, value)
        elif value is None:
            self._out += pickle.NONE
        elif isinstance(value, bool):
            self._out += pickle.NEWTRUE if value else pickle.NEWFALSE
        elif isinstance(value, int):
            self._add_int(value)
        elif isinstance(value, float):
            self._out += pickle.BINFLOAT + struct.pack(">d", value)
        elif isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass")
            self._out += pickle.BINUNICODE + struct.pack("<I", len(text)) + text
        elif isinstance(value, (tuple, list)):
            self._out += pickle.MARK if isinstance(value, tuple) else pickle.EMPTY_LIST + pickle.MARK
            for item in value:
                self.add(item)
            self._out += pickle.TUPLE if isinstance(value, tuple) else pickle.APPENDS
        else:
            self._out += pickle.EMPTY_DICT
            self._add_items(value)

    def _add_tagged(self, tag: str, value: dict[str, Any]) -> None:
        content = value[tag]
        if tag in TENSORS:
            self._add_tensor(self._entries[content])
        elif tag == "$float":
            self.add(float(content))
        elif tag == "$int":
            self._add_int(int(content, 16))
        elif tag == "$tuple":
            self.add(tuple(content))
        elif tag == "$dict":
            self._out += pickle.EMPTY_DICT
            self._add_items(value)
        elif tag in ("$size", "$counter"):
            self._add_global(*{"$size": ("torch", "Size"), "$counter": ("collections", "Counter")}[tag])
            self.add((tuple(content) if tag == "$size" else content,))
            self._out += pickle.REDUCE
        elif tag in ("$ordered", "$module"):
            self._add_ordered(content)
            if tag == "$module":
                self.add({"_metadata": {"$ordered": value["$versions"]}})
                self._out += pickle.BUILD
        else:
            raise StateError(f"the state has a {tag}, which this version does not know. Take the one that saved it.")

    def _add_ordered(self, value: dict[str, Any]) -> None:
        self._add_global("collections", "OrderedDict")
        self._out += pickle.EMPTY_TUPLE + pickle.REDUCE
        self._add_items(value)

    def _add_items(self, value: dict[str, Any]) -> None:
        """Puts the items into the dict that is on top of the stack."""
        pairs = [(key_from(key), item) for key, item in value["$dict"]] if tag_of(value) == "$dict" else value.items()
        self._out += pickle.MARK
        for key, item in pairs:
            self.add(key)
            self.add(item)
        self._out += pickle.SETITEMS

    def _add_tensor(self, entry: Entry) -> None:
        """A call of torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, dtype])."""
        key = self.keys.setdefault(entry.name, str(len(self.keys)))
        kind = STORAGES.get(entry.dtype)
        strides = tuple(math.prod(max(1, n) for n in entry.shape[i + 1 :]) for i in range(len(entry.shape)))
        self._add_global("torch._utils", "_rebuild_tensor_v2" if kind else "_rebuild_tensor_v3")
        self._out += pickle.MARK + pickle.MARK
        self.add("storage")
        self._add_global("torch" if kind else "torch.storage", kind or "UntypedStorage")
        self.add(key)
        self.add("cpu")
        self.add(math.prod(entry.shape) if kind else entry.nbytes)
        self._out += pickle.TUPLE + pickle.BINPERSID
        for argument in (0, entry.shape, strides, False):
            self.add(argument)
        self._add_ordered({})
        if kind is None:
            self._add_global("torch", entry.dtype)
        self._out += pickle.TUPLE + pickle.REDUCE

    def _add_global(self, module: str, name: str) -> None:
        self._out += pickle.GLOBAL + f"{module}\n{name}\n".encode()

    def _add_int(self, value: int) -> None:
        if -(2**31) <= value < 2**31:
            self._out += pickle.BININT + struct.pack("<i", value)
        else:
            data = pickle.encode_long(value)
            if len(data) > 255:  # what torch's reader takes is no longer than that
                raise StateError(
                    f"the state has a whole number of {8 * len(data)} bits, which torch.load() does not read. "
                    "Export to .safetensors, which holds the tensors alone, or --only another object."
                )
            self._out += pickle.LONG1 + bytes([len(data)]) + data
