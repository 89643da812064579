#!/usr/bin/env bash
# A failed fsspec transaction takes back what was written with open(), and leaves what rm(), mv() and put() did.
#
# Package:   fsspec 2026.9.0, its local file system
# Guess:     `with fs.transaction:` is all or nothing: after an error in it, all files are as they were before.
# Behaviour: only files from open() (and pipe(), which uses it) wait for the end. rm(), mv(), cp_file(), touch() and put() act
#            at once and stay. It differs by file system: in the memory one put() waits, too.
# Seen 2026-11-29: in a transaction that ends with an error, over a file with the text "old"
#            open, pipe: old; put: new; cp_file, mv: two; touch: empty; rm: gone
#            rm(latest), then open(latest, "wb"): no checkpoint is left
# Matters:   rotating checkpoints in one transaction loses the old one and discards the new one. Remove after the transaction.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet fsspec==2026.9.0
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import pathlib
import sys

import fsspec

fs, folder = fsspec.filesystem("file"), pathlib.Path(sys.argv[1])
folder.mkdir()
latest, second, upload = (str(folder / name) for name in ("latest", "second", "upload"))


def write():
    with fs.open(latest, "wb") as file:
        file.write(b"new")


def rotate():
    fs.rm(latest)
    write()


ACTIONS = {
    "open": write,
    "pipe": lambda: fs.pipe(latest, b"new"),
    "put": lambda: fs.put(upload, latest),
    "cp_file": lambda: fs.cp_file(second, latest),
    "mv": lambda: fs.mv(second, latest),
    "touch": lambda: fs.touch(latest),
    "rm": lambda: fs.rm(latest),
    "rm, then open": rotate,
}
for name, act in ACTIONS.items():
    for path, text in ((latest, "old"), (second, "two"), (upload, "new")):
        pathlib.Path(path).write_text(text)
    try:
        with fs.transaction:
            act()
            raise InterruptedError
    except InterruptedError:
        left = pathlib.Path(latest)
        print(f"{name}: {(left.read_text() or 'empty') if left.exists() else 'gone'}")
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what a failed fsspec transaction leaves is not what this file states"; exit 1; }
open: old
pipe: old
put: new
cp_file: two
mv: two
touch: empty
rm: gone
rm, then open: gone
EXPECTED
