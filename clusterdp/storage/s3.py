"""S3Storage: S3 and compatible stores (MinIO, Ceph, R2, ...), through s3fs.

Credentials and endpoint come from the places that S3 programs usually read: ~/.aws, AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL_S3, the role of the machine; or from fsspec's own configuration. This module uses only single requests
of s3fs. This module itself does the retries, the division of a file into parts, and the clean-up after an error.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import Any

from clusterdp.errors import ConfigError
from clusterdp.storage.address import masked
from clusterdp.storage.base import already_there, checked
from clusterdp.storage.retry import RetryPolicy, StorageFault
from clusterdp.storage.url import UrlStorage

_BUSY = {
    *("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted"),
    *("Throttling", "ThrottlingException", "RequestLimitExceeded", "ConditionalRequestConflict"),
}
_PAGE = 1000  # the largest number of names in one answer of S3
_DENIED = {"AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "403", "401"}
_RIGHTS = "s3:GetObject, PutObject, DeleteObject, ListBucket, AbortMultipartUpload and ListBucketMultipartUploads"
# All parts except the last have the same length, because the store R2 requires it. S3 takes 10,000 parts of 5 MiB or
# more: parts of
# 32 MiB allow files of 312 GiB, one rank's share of a checkpoint.
PART = 32 << 20
AT_ONCE = 4  # parts sent at once; with the part being filled, 5 are in memory
_ABORT_S = 10.0


class S3Storage(UrlStorage):
    def __init__(self, url: str, retry_policy: RetryPolicy, options: Mapping[str, Any]):
        options = dict(options)
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ConfigError(
                f"checkpoint.url: {masked(url)} has a user or a key before its bucket. "
                "Keys belong in ~/.aws/credentials, or in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            )
        config = {
            "connect_timeout": min(20.0, retry_policy.timeout_s),
            "read_timeout": retry_policy.timeout_s,
            "retries": {"total_max_attempts": 1},  # no retries here: RetryPolicy repeats requests
            "max_pool_connections": 32,
            # Newer clients add checksums that not every store knows. Checkpoints have checksums of their own.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        options["config_kwargs"] = config | options.get("config_kwargs", {})
        super().__init__(url, retry_policy, options)
        self.fs.retries = 1  # for the same reason as `retries` above
        self.bucket = self.root.partition("/")[0]

    def _key(self, name: str) -> str:
        return self._path(name).partition("/")[2]

    def _prefix(self, folder: str) -> str:
        key = self._key(folder)
        return f"{key}/" if key else ""

    def call(self, name: str, operation: str, *, nbytes: int = 0, **arguments: Any) -> dict[str, Any]:
        """Calls an operation of the S3 API on the bucket."""
        arguments = {"nbytes": nbytes, "Bucket": self.bucket, **arguments}
        return self._ask(name, "call_s3", operation, **arguments)  # type: ignore[no-any-return]

    def judge(self, error: Exception, name: str) -> StorageFault:
        from botocore import exceptions as botocore

        url = f"{self.url}/{name}" if name else self.url
        code, status = _answer(error)
        if code in _BUSY or status in (408, 429, 500, 502, 503, 504):
            return StorageFault(OSError(errno.EAGAIN, f"the server is not ready ({code})", url), transient=True)
        if code == "NoSuchBucket":
            # The error is not ENOENT, because a missing file would mean a damaged checkpoint, or no checkpoint yet.
            why = f"there is no bucket {self.bucket!r}. Create it, or name another in checkpoint.url"
            return StorageFault(OSError(errno.ENXIO, why, url), transient=False)
        if isinstance(error, botocore.NoCredentialsError):
            why = "no S3 credentials were found. Put them in ~/.aws/credentials, or in AWS_ACCESS_KEY_ID and its like"
            return StorageFault(OSError(errno.EACCES, why, url), transient=False)
        if code in _DENIED:
            why = f"access denied ({code}). Check the credentials for checkpoint.url; they must allow {_RIGHTS}"
            return StorageFault(OSError(errno.EACCES, why, url), transient=False)
        if code in ("PreconditionFailed", "412"):
            return StorageFault(already_there(url), transient=False)
        if code in ("NoSuchKey", "404", "NoSuchUpload"):
            return StorageFault(OSError(errno.ENOENT, "not there", url), transient=False)
        lost = isinstance(error, (botocore.ConnectionError, botocore.HTTPClientError))
        if lost and not isinstance(error, botocore.SSLError):
            return StorageFault(OSError(errno.ECONNRESET, f"no answer ({type(error).__name__})", url), transient=True)
        if _is_torn(error):
            return StorageFault(
                OSError(errno.ECONNRESET, f"a cut answer ({type(error).__name__})", url), transient=True
            )
        if code or isinstance(error, botocore.BotoCoreError):
            why = f"{type(error).__name__}: {error}. See AWS_ENDPOINT_URL_S3, AWS_REGION and checkpoint.url"
            return StorageFault(OSError(errno.EIO, why, url), transient=False)
        return super().judge(error, name)

    def _pages(self, **arguments: Any) -> Iterator[dict[str, Any]]:
        while True:
            page = self.call("", "list_objects_v2", MaxKeys=_PAGE, **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def list(self, folder: str = "") -> list[str]:
        prefix = self._prefix(folder)
        names = set()
        for page in self._pages(Prefix=prefix, Delimiter="/"):
            names |= {entry["Prefix"] for entry in page.get("CommonPrefixes", [])}
            names |= {entry["Key"] for entry in page.get("Contents", [])}
        return sorted({name[len(prefix) :].rstrip("/") for name in names} - {""})

    def tree(self, wanted: Callable[[str], bool]) -> dict[str, Sequence[str]]:
        """Lists all names from the first wanted folder to the last, with one request for each page of names instead of
        one request for each folder."""
        folders = [name for name in self.list() if wanted(name)]
        found: dict[str, set[str]] = {folder: set() for folder in folders}
        if folders:
            prefix = self._prefix("")
            for page in self._pages(Prefix=prefix, StartAfter=f"{prefix}{folders[0]}/"):
                names = [entry["Key"][len(prefix) :].split("/") for entry in page.get("Contents", [])]
                for folder, *below in names:
                    if below and folder in found:
                        found[folder].add(below[0])
                if names and names[-1][0] > folders[-1]:
                    break
        return {folder: sorted(names - {""}) for folder, names in found.items()}

    def size(self, name: str) -> int:
        return int(self.call(name, "head_object", Key=self._key(name))["ContentLength"])

    def modified(self, name: str) -> float:
        return float(self.call(name, "head_object", Key=self._key(name))["LastModified"].timestamp())

    def _range(self, name: str, start: int, stop: int) -> bytes:
        try:
            return super()._range(name, start, stop)
        except OSError as error:
            if _answer(error.__cause__)[1] == 416:  # the file ends before `start`
                return b""
            raise

    def make_folder(self, folder: str) -> None:
        checked(folder)  # a prefix needs no creation, and s3fs would make a bucket

    def remove_folder(self, folder: str) -> None:
        checked(folder)

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        if self._exists(name):
            raise already_there(f"{self.url}/{name}")
        parts = parts_of(chunks)
        first = next(parts, b"")
        second = next(parts, None)
        if second is None:
            self.call(name, "put_object", nbytes=len(first), Key=self._key(name), Body=first)
            total = len(first)
        else:
            total = Upload(self, name, self._key(name)).run(chain([first, second], parts))
        self._check_size(name, total)

    def _put(self, name: str, data: bytes) -> None:
        put: dict[str, Any] = {"Key": self._key(name), "Body": data, "nbytes": len(data)}
        try:
            self.call(name, "put_object", IfNoneMatch="*", **put)
        except OSError as error:
            if _answer(error.__cause__)[1] != 501 and _answer(error.__cause__)[0] != "NotImplemented":
                raise
            self.call(name, "put_object", **put)

    def remove(self, name: str) -> None:
        self.call(name, "delete_object", Key=self._key(name))

    def drop_unfinished(self, ours: Callable[[str], bool], before: float) -> None:
        prefix = self._prefix("")
        page = self.call("", "list_multipart_uploads", Prefix=prefix)  # first 1,000
        for upload in page.get("Uploads", []):
            if ours(upload["Key"][len(prefix) :]) and upload["Initiated"].timestamp() < before:
                with suppress(FileNotFoundError):
                    self.call("", "abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])


def _answer(error: BaseException | None) -> tuple[str, int]:
    """Returns S3's error code and the HTTP status if S3 refused a request; else ("", 0). s3fs has turned the refusal
    into an error of Python."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return str(response.get("Error", {}).get("Code", "")), int(status)
        error = error.__cause__
    return "", 0


def _is_torn(error: Exception) -> bool:
    from aiohttp import ClientError
    from botocore.exceptions import IncompleteReadError
    from botocore.parsers import ResponseParserError

    return isinstance(error, (ClientError, IncompleteReadError, ResponseParserError))


def parts_of(chunks: Iterable[memoryview]) -> Iterator[bytes]:
    """Yields the same bytes in parts of PART bytes; the last part may be shorter."""
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
        """Uploads the parts, and returns the number of bytes in all parts. The file appears whole or not at all."""
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
        # fsspec's own event loop sends the part, not a thread, because an interpreter waits for threads at its exit.
        storage = self._storage
        request = storage.fs._call_s3("upload_part", **self._arguments(number, part))
        timed = asyncio.wait_for(request, storage.limit_s(len(part)))
        self._pending.append((number, part, asyncio.run_coroutine_threadsafe(timed, storage.fs.loop)))
        return len(part)

    def _arguments(self, number: int, part: bytes) -> dict[str, Any]:
        return {"Bucket": self._storage.bucket, "PartNumber": number, "Body": part, **self._target}

    def _collect(self) -> None:
        """Waits for the answer to the oldest pending part. If no answer comes, the part is sent again."""
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
        # Ignores NoSuchUpload, which means that an answer was lost and the request repeated. The caller checks the size
        # later.
        with suppress(FileNotFoundError):
            parts = {"Parts": self._done}
            self._storage.call(self._name, "complete_multipart_upload", MultipartUpload=parts, **self._target)

    def _abort(self) -> None:
        """Aborts the upload: the parts of an unfinished upload cost money, although no listing of files shows them."""
        for _, _, sent in self._pending:
            sent.cancel()
        with suppress(Exception):  # the server itself may have failed; a later attempt drops the parts
            storage = self._storage
            storage.fs.call_s3("abort_multipart_upload", timeout=_ABORT_S, Bucket=storage.bucket, **self._target)
