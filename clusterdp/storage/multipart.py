"""Upload: one big file in parts, several at a time. After an error nothing is left behind."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterdp.storage.s3 import S3Storage

# All parts but the last are equally long: R2 wants that. S3 takes 10,000 parts of 5 MiB or more: 32 MiB are 312 GiB a
# file, which is one rank's share of a checkpoint.
PART = 32 << 20
AT_ONCE = 4  # so that 5 parts are in memory at most, the one that is being filled included
_ABORT_S = 10.0


def parts_of(chunks: Iterable[memoryview]) -> Iterator[bytes]:
    """The same bytes in parts, the last of any length."""
    gathered: list[memoryview] = []
    room = PART
    for chunk in chunks:
        while len(chunk) >= room:
            yield b"".join([*gathered, chunk[:room]])
            chunk, gathered, room = chunk[room:], [], PART
        if chunk:
            gathered.append(chunk)
            room -= len(chunk)
    if gathered:
        yield b"".join(gathered)


class Upload:
    def __init__(self, storage: S3Storage, name: str, key: str):
        self._storage = storage
        self._name = name
        self._target: dict[str, Any] = {"Key": key}
        self._pending: deque[tuple[int, bytes, Future[Any]]] = deque()
        self._done: list[dict[str, Any]] = []

    def run(self, parts: Iterable[bytes]) -> int:
        """Upload the parts; returns how many bytes they are. The file is there when all of it is, or not at all."""
        answer = self._storage.call(self._name, "create_multipart_upload", **self._target)
        self._target["UploadId"] = answer["UploadId"]
        try:
            total = sum(self._send(number, part) for number, part in enumerate(parts, 1))
            while self._pending:
                self._collect()
            self._complete()
        except BaseException:
            self._abort()
            raise
        return total

    def _send(self, number: int, part: bytes) -> int:
        if len(self._pending) == AT_ONCE:
            self._collect()
        # Futures of fsspec's own loop rather than threads: an interpreter that ends would wait for those.
        storage = self._storage
        request = storage.fs._call_s3("upload_part", **self._arguments(number, part))
        timed = asyncio.wait_for(request, storage.limit_s(len(part)))
        self._pending.append((number, part, asyncio.run_coroutine_threadsafe(timed, storage.fs.loop)))
        return len(part)

    def _arguments(self, number: int, part: bytes) -> dict[str, Any]:
        return {"Bucket": self._storage.bucket, "PartNumber": number, "Body": part, **self._target}

    def _collect(self) -> None:
        """The answer to the part that was sent first; where there is none, that part is sent again."""
        number, part, sent = self._pending.popleft()
        storage, first = self._storage, [sent]

        def answer() -> Any:
            if first:
                return first.pop().result()
            limit_s = storage.limit_s(len(part))
            return storage.fs.call_s3("upload_part", timeout=limit_s, **self._arguments(number, part))

        got = storage.retry_policy.call(answer, lambda error: storage.judge(error, self._name))
        self._done.append({"PartNumber": number, "ETag": got["ETag"]})

    def _complete(self) -> None:
        # No such upload: an answer was lost, and the question asked again. The size is about to be looked at.
        with suppress(FileNotFoundError):
            parts = {"Parts": self._done}
            self._storage.call(self._name, "complete_multipart_upload", MultipartUpload=parts, **self._target)

    def _abort(self) -> None:
        """Parts of an upload that is never completed are paid for, and no listing of files shows them."""
        for _, _, sent in self._pending:
            sent.cancel()
        with suppress(Exception):  # the server may be what has failed; a later attempt drops what is left then
            storage = self._storage
            storage.fs.call_s3("abort_multipart_upload", timeout=_ABORT_S, Bucket=storage.bucket, **self._target)
