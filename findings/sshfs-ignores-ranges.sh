#!/usr/bin/env bash
# fsspec's cat_file(start, end) of an SFTP file reads the whole file, and pipe_file(mode="create") replaces one that exists.
#
# Package:   sshfs 2026.8.0, asyncssh 2.24.1, fsspec 2026.9.0
# Guess:     as with fsspec's own file systems: the bytes of the range, and FileExistsError.
# Behaviour: both arguments are accepted and ignored, also by rmdir(): it returns, and the empty folder stays.
# Seen 2026-11-30: cat_file(start=2, end=5): b'0123456789'; after pipe_file(mode="create"): b'new'; the folder stays: True
# Matters:   a reader of ranges (Zarr, Parquet, our own blocks) gets the wrong bytes or the whole file again and again, and
#            "create" is what a publisher relies on to be the only one. open() with seek() and read() does it right.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet sshfs==2026.8.0 asyncssh==2.24.1 fsspec==2026.9.0
cat >"$dir/ranges.py" <<'PROGRAM'
import asyncio
import pathlib
import tempfile
import threading

import asyncssh
from sshfs import SSHFileSystem

folder = pathlib.Path(tempfile.mkdtemp(dir=pathlib.Path(__file__).parent))
(folder / "file").write_bytes(b"0123456789")
(folder / "empty").mkdir()
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()


class Server(asyncssh.SSHServer):
    def begin_auth(self, username):
        return False


async def serve():
    key = asyncssh.generate_private_key("ssh-ed25519")
    where = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key], server_factory=Server, sftp_factory=True)
    return where.get_port(), key.export_public_key().decode().strip()


port, key = asyncio.run_coroutine_threadsafe(serve(), loop).result()
known = folder.parent / "known_hosts"
known.write_text(f"[127.0.0.1]:{port} {key}\n")
files = SSHFileSystem("127.0.0.1", port=port, username="me", client_keys=None, config=None, known_hosts=str(known))
print("cat_file(start=2, end=5):", files.cat_file(f"{folder}/file", start=2, end=5))
with files.open(f"{folder}/file", "rb") as file:
    file.seek(2)
    print("seek(2), read(3):", file.read(3))
files.pipe_file(f"{folder}/file", b"new", mode="create")
print("after pipe_file(mode='create') on an existing file:", (folder / "file").read_bytes())
files.rmdir(f"{folder}/empty")
print("after rmdir() the empty folder is there:", (folder / "empty").exists())
PROGRAM
"$dir/venv/bin/python" "$dir/ranges.py" >"$dir/seen" 2>"$dir/stderr" || { cat "$dir/stderr"; exit 1; }
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what sshfs does with ranges and modes is not what this file states"; exit 1; }
cat_file(start=2, end=5): b'0123456789'
seek(2), read(3): b'234'
after pipe_file(mode='create') on an existing file: b'new'
after rmdir() the empty folder is there: True
EXPECTED
