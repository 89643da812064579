"""S3 when all is not well: every answer that can be late, lost or a refusal, from a real server behind a proxy."""

from __future__ import annotations

import errno
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterdp.checkpoint.format.manifest import scan
from clusterdp.errors import ConfigError
from clusterdp.storage import RetryPolicy, open_storage, s3, url
from clusterdp.storage.s3 import S3Storage
from tests.ports import free_port
from tests.storage.proxy import Proxy, Request
from tests.storage.servers import S3Server

QUICK = RetryPolicy(timeout_s=5, retry_s=5)
MIB = 1 << 20


@pytest.fixture
def storage(proxy: Proxy, bucket: str) -> S3Storage:
    return open_s3(proxy.endpoint, bucket)


def open_s3(endpoint: str, bucket: str, retry_policy: RetryPolicy = QUICK, **options: Any) -> S3Storage:
    address = f"s3://{bucket}/{uuid.uuid4().hex}"
    opened = open_storage(address, retry_policy=retry_policy, endpoint_url=endpoint, **options)
    assert isinstance(opened, S3Storage)
    opened.fs.connect()  # which takes a while, and short patience is for servers
    return opened


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """5 MiB, the least that S3 takes."""
    monkeypatch.setattr(s3, "PART", 5 * MIB)
    return 5 * MIB


def chunks(data: bytes, size: int = 3 * MIB) -> Iterator[memoryview]:
    return (memoryview(data)[start : start + size] for start in range(0, len(data), size))


def uploads(storage: S3Storage) -> list[str]:
    page = storage.call("", "list_multipart_uploads", Prefix=storage._prefix(""))
    return [upload["Key"] for upload in page.get("Uploads", [])]


def is_part(request: Request) -> bool:
    return "partNumber=" in request.path


def completes(request: Request) -> bool:
    return request.method == "POST" and "uploadId=" in request.path


def test_s3_uploads_a_large_file_in_parts(storage: S3Storage, proxy: Proxy, small_parts: int) -> None:
    data = os.urandom(12 * MIB + 7)
    storage.write("a/x", chunks(data))
    parts = sorted((r for r in proxy.requests if is_part(r)), key=lambda r: r.path.partition("partNumber=")[2])
    assert [r.sent for r in parts] == [small_parts, small_parts, 2 * MIB + 7]
    assert storage.read("a/x") == data
    assert uploads(storage) == []


@pytest.mark.parametrize("size", [0, 5 * MIB - 1, 5 * MIB, 5 * MIB + 1])
def test_s3_reads_back_empty_files_and_files_around_the_part_size(
    storage: S3Storage, small_parts: int, size: int
) -> None:
    data = os.urandom(size)
    storage.write("a/x", chunks(data))
    assert storage.read("a/x") == data


def test_s3_upload_holds_a_limited_number_of_parts_in_memory(
    storage: S3Storage, small_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are handed over as they are asked for: their number in memory does not grow with the file."""
    already_there, most = 0, 0

    def counted() -> Iterator[memoryview]:
        nonlocal already_there, most
        for _ in range(7):
            already_there += 1
            most = max(most, already_there - len(collected))
            yield memoryview(bytes(5 * MIB))

    collected: list[None] = []
    collect = s3.Upload._collect
    monkeypatch.setattr(s3.Upload, "_collect", lambda upload: collected.append(collect(upload)))
    storage.write("a/x", counted())
    assert most <= s3.AT_ONCE + 1
    assert storage.size("a/x") == 35 * MIB


def test_s3_upload_with_a_denied_part_leaves_no_parts(storage: S3Storage, proxy: Proxy, small_parts: int) -> None:
    proxy.befall("denied", 1, lambda r: "partNumber=2" in r.path)
    with pytest.raises(PermissionError, match=r"access denied \(InvalidAccessKeyId\)"):
        storage.write("a/x", chunks(os.urandom(12 * MIB)))
    assert (storage.list(), uploads(storage)) == ([], [])
    assert any(r.method == "DELETE" for r in proxy.requests), "an upload was begun, and taken back"


def test_s3_upload_interrupted_by_its_data_source_leaves_no_parts(storage: S3Storage, small_parts: int) -> None:
    def torn() -> Iterator[memoryview]:
        yield memoryview(bytes(11 * MIB))
        raise OSError(errno.EIO, "as the test wants it")

    with pytest.raises(OSError, match="as the test wants it"):
        storage.write("a/x", torn())
    assert (storage.list(), uploads(storage)) == ([], [])


def test_drop_unfinished_aborts_only_old_s3_uploads_with_matching_names(storage: S3Storage) -> None:
    for name in ("step_1/ours", "step_1/another's"):
        storage.call("", "create_multipart_upload", Key=storage._key(name))
    storage.drop_unfinished(lambda name: name == "step_1/ours", before=0.0)
    assert len(uploads(storage)) == 2, "they are younger than that"
    storage.drop_unfinished(lambda name: name == "step_1/ours", before=4e9)
    assert uploads(storage) == [storage._key("step_1/another's")]


@pytest.mark.parametrize("fate", ["busy", "drop", "lose"])
def test_s3_retries_each_kind_of_request_after_a_temporary_error(
    storage: S3Storage, proxy: Proxy, small_parts: int, fate: str
) -> None:
    """Each request of a save fails once, or twice in a row: the file and the manifest are there in the end."""
    seen: dict[str, int] = {}

    def decide(request: Request) -> str | None:
        kind = f"{request.method} {request.path.partition('?')[2].partition('uploadId')[0]} {request.path[-4:]}"
        seen[kind] = seen.get(kind, 0) + 1
        return fate if seen[kind] == 1 else None

    proxy.fate = decide
    data = os.urandom(11 * MIB)
    storage.write("a/x", chunks(data))
    storage.publish("a/m", b"manifest")
    assert storage.list("a") == ["m", "x"]
    assert storage.read("a/x") == data
    storage.remove("a/x")
    assert storage.list("a") == ["m"]
    assert len(seen) >= 9, seen


def test_s3_read_retries_a_broken_download(storage: S3Storage, proxy: Proxy) -> None:
    data = os.urandom(200_000)
    storage.publish("x", data)
    proxy.befall("cut", 2, lambda r: r.method == "GET")
    assert storage.read("x") == data


def test_s3_publish_succeeds_if_its_first_response_is_lost(storage: S3Storage, proxy: Proxy) -> None:
    proxy.befall("lose", 1, lambda r: r.method == "PUT")
    storage.publish("m", b"ours")
    assert (storage.read("m"), len(proxy.of("PUT"))) == (b"ours", 2)


def test_s3_put_if_absent_refuses_a_second_publisher(storage: S3Storage, proxy: Proxy) -> None:
    """Both have looked, and seen that it is not there yet: only put-if-absent tells them apart."""
    storage._exists = lambda name: False  # type: ignore[method-assign]
    storage.publish("m", b"first")
    with pytest.raises(FileExistsError):
        storage.publish("m", b"second")
    assert storage.read("m") == b"first"
    assert [r.headers["If-None-Match"] for r in proxy.of("PUT")] == ["*", "*"]


def test_s3_publish_refuses_an_existing_name_on_servers_without_put_if_absent(storage: S3Storage, proxy: Proxy) -> None:
    proxy.fate = lambda request: "unknown" if request.headers["If-None-Match"] else None
    storage.publish("m", b"first")
    with pytest.raises(FileExistsError):
        storage.publish("m", b"second")
    assert storage.read("m") == b"first"


def test_s3_publish_waits_for_an_unreachable_server_to_return(
    s3_server: S3Server, keys: None, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    storage = open_s3(f"http://127.0.0.1:{port}", bucket, RetryPolicy(timeout_s=5, retry_s=60))
    proxies = []

    class ComeBack(logging.Handler):
        """When the storage says that it will ask again."""

        def emit(self, record: logging.LogRecord) -> None:
            assert "Asking again for up to 60 s" in record.getMessage()
            proxies.append(Proxy(s3_server.port, port))

    logger, handler = logging.getLogger("clusterdp.storage"), ComeBack()
    logger.addHandler(handler)
    try:
        storage.publish("m", b"there")
        assert storage.read("m") == b"there"
        assert len(proxies) == 1, "it was away once"
    finally:
        logger.removeHandler(handler)
        for proxy in proxies:
            proxy.stop()


@pytest.mark.parametrize("do", ["read", "publish", "write", "list", "remove"])
def test_unanswered_s3_request_fails_after_the_retry_limit(
    proxy: Proxy, bucket: str, do: str, small_parts: int
) -> None:
    storage = open_s3(proxy.endpoint, bucket, RetryPolicy(timeout_s=0.3, retry_s=0.1))
    proxy.fate = lambda request: "hang"
    asks: dict[str, Callable[[], object]] = {
        "read": lambda: storage.read("x"),
        "publish": lambda: storage.publish("x", b"1"),
        "write": lambda: storage.write("x", chunks(bytes(11 * MIB))),
        "list": storage.list,
        "remove": lambda: storage.remove("x"),
    }
    with pytest.raises(OSError, match=r"for 0\.1 s\. See whether the server is up") as caught:
        asks[do]()
    assert storage.url in str(caught.value)


def test_s3_upload_fails_if_the_server_freezes_between_parts(
    s3_server: S3Server, keys: None, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads what is sent, and a part is more than the kernel keeps: no time-out for an answer has begun."""
    storage = open_s3(s3_server.endpoint, bucket, RetryPolicy(timeout_s=0.5, retry_s=0.1))
    part = memoryview(bytes(s3.PART))
    monkeypatch.setattr(url, "_SLOWEST", 1 << 30)

    def freezing() -> Iterator[memoryview]:
        yield part
        yield part
        s3_server.freeze()
        yield part

    try:
        with pytest.raises(OSError, match="See whether the server is up"):
            storage.write("x", freezing())
    finally:
        s3_server.thaw()


def test_denied_s3_access_and_missing_bucket_are_errors_with_a_remedy(
    storage: S3Storage, proxy: Proxy, bucket: str
) -> None:
    proxy.fate = lambda request: "denied"
    with pytest.raises(PermissionError, match=r"Check the credentials for checkpoint\.url; they must allow s3:GetO"):
        storage.list()
    assert len(proxy.requests) == 1
    proxy.fate = lambda request: None
    nowhere = open_s3(proxy.endpoint, "no-such-bucket")
    # It must never look like a bucket that has no checkpoints: the run would start anew.
    for ask in (nowhere.list, lambda: scan(nowhere)):
        with pytest.raises(OSError, match=r"no bucket 'no-such-bucket'\. Create it, or name another in checkpoint"):
            ask()


def test_missing_s3_credentials_are_reported_by_a_permission_error(
    s3_server: S3Server, keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage = open_s3(s3_server.endpoint, "tests")
    with pytest.raises(PermissionError, match="no S3 credentials were found"):
        storage.list()


def test_s3_url_with_access_keys_is_refused_without_printing_the_secret() -> None:
    with pytest.raises(ConfigError, match=r"s3://AKIA:\*\*\*@bucket/x has a user or a key") as caught:
        open_storage("s3://AKIA:very-secret@bucket/x")
    assert "very-secret" not in str(caught.value)


def test_checkpoint_scan_on_s3_lists_twice_and_reads_each_new_manifest_once(
    storage: S3Storage, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.checkpoint.test_manifest import manifest

    names = []
    for step in range(12):
        one = manifest(step=step, token=f"aaaaaaaaaaaa-{step + 1:04d}", order=step + 1)
        storage._put(one.info.name, one.encode())
        storage._put(f"{one.info.folder}/{one.info.token}-r0000.json", b"{}")
        names.append(one.info.name)
    for number in range(10):
        storage._put(f"aaa/{number}", b"1")
        storage._put(f"zzz/{number}", b"1")
    proxy.requests.clear()
    found, bad = scan(storage)
    assert ([info.name for info in found], bad) == (names, [])
    heads = [r for r in proxy.requests if "MANIFEST" in r.path]
    assert len(heads) == 12, "each head is one request"
    assert len(proxy.requests) - len(heads) == 2, "two listings"
    assert scan(storage, {info.name: info for info in found})[0] == found
    assert len(proxy.requests) == 16, "known ones are not read again"

    monkeypatch.setattr(s3, "_PAGE", 8)
    proxy.requests.clear()
    assert scan(storage, {info.name: info for info in found})[0] == found
    folders, files = 2, 4  # 14 folders, and 24 files; what is before and behind them is not asked for
    assert len(proxy.requests) == folders + files


def test_verified_s3_read_downloads_each_byte_once(storage: S3Storage, proxy: Proxy) -> None:
    from clusterdp.checkpoint.format import verified_reads
    from clusterdp.checkpoint.format.manifest import FileRecord

    data = os.urandom(20 * MIB + 5)
    storage.write("x", chunks(data))
    record = FileRecord(len(data), tuple(verified_reads.checksums(memoryview(data))))
    proxy.requests.clear()
    verified_reads.verify(storage, "x", record)
    assert sum(r.returned for r in proxy.requests) == len(data)
    assert len(proxy.of("GET")) == 2, "16 blocks at a time"


def test_s3_storage_refuses_use_in_a_forked_child(storage: S3Storage) -> None:
    storage.list()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            storage.list()
        except OSError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert b"this process was forked" in os.read(reader, 1000)
    os.close(reader)
    assert storage.list() == []
