#!/usr/bin/env bash
# fsspec takes the brackets of an existing path for a pattern: cat() and get() read another file, rm() removes another.
#
# Package:   fsspec 2026.9.0, its own local and memory file systems
# Guess:     a path that exists is itself; only glob() globs. exists(), ls(), find(), info() and cat_file() do so.
# Behaviour: cat(), get() and rm() (that of the memory file system; the local one is literal) expand the path first, and
#            do not look whether it exists: lr[1] means lr1.
# Seen 2026-11-29: folders lr1 and lr[1], each with a file that has its name
#            exists(lr[1]): True; cat: lr1; get: lr1; rm in memory leaves: lr[1]
# Matters:   folders that are named by a sweep have brackets (layers=[64,10]). A resume can load another run's weights, and
#            clean-up can delete another run. Use cat_file(), get_file(), rm_file().
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet fsspec==2026.9.0
"$dir/venv/bin/python" - "$dir/work" >"$dir/seen" 2>"$dir/stderr" <<'PROGRAM' || { cat "$dir/stderr"; exit 1; }
import pathlib
import sys

import fsspec

local, memory = fsspec.filesystem("file"), fsspec.filesystem("memory")
for run in "lr1", "lr[1]":
    folder = pathlib.Path(sys.argv[1], run)
    folder.mkdir(parents=True)
    folder.joinpath("weights").write_text(run)
    memory.pipe(f"/runs/{run}/weights", run.encode())

mine = f"{sys.argv[1]}/lr[1]/weights"
print("exists:", local.exists(mine), "cat_file:", local.cat_file(mine).decode())
print("cat:", *(content.decode() for content in local.cat(mine).values()))
local.get(f"{sys.argv[1]}/lr[1]", f"{sys.argv[1]}/copy", recursive=True)
print("get:", pathlib.Path(sys.argv[1], "copy/weights").read_text())
memory.rm("/runs/lr[1]", recursive=True)
print("rm leaves:", *memory.find("/runs"))
PROGRAM
cat "$dir/seen"
diff "$dir/seen" - <<'EXPECTED' || { echo "changed: what fsspec does with brackets is not what this file states"; exit 1; }
exists: True cat_file: lr[1]
cat: lr1
get: lr1
rm leaves: /runs/lr[1]/weights
EXPECTED
