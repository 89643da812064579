"""Another release of Slurm than the machine's: `python -m tests.slurm.release 24.11 COMMAND...`.

COMMAND runs where /usr has the programs of that release. There `python -m tests.slurm` and the tests boot it as they
boot the machine's own. Nothing is installed: the packages, and the libraries that they need, are unpacked into a cache.
A private mount namespace shows them in an overlay over /usr. Folders, processes, network and users are the machine's,
so virtual environments and ordinary users just work. The namespace ends with its last process.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.slurm import packages

SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}  # of Debian
NEWS = ("slurmctld", "slurmd", "slurm-client", "slurmdbd")
OVERLAY = "slurm-release"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")  # before a test sets another
CLONE_NEWNS = 0x00020000
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class NoRelease(Exception):
    """The message says what is missing."""


def is_entered() -> bool:
    """Whether this process sees the programs of a release already."""
    return f"{OVERLAY} /usr " in Path("/proc/self/mounts").read_text()


def fetch(release: str) -> Path:
    return fetch_packages(f"slurm-{release}", SUITES[release], NEWS, ("slurm", "libslurm"))


def fetch_packages(name: str, suite: str, wanted: Sequence[str], own: tuple[str, ...]) -> Path:
    """The folder with the unpacked packages, fetched once: a folder named own[0] has those whose names begin with a
    word of `own`, libs/ the libraries that they need."""
    folder = CACHE / "clusterdp" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _fetch(folder, suite, wanted, own)
            (folder / "complete").touch()
    return folder


def _fetch(folder: Path, suite: str, wanted: Sequence[str], own: tuple[str, ...]) -> None:
    print(f"fetching {', '.join(wanted)} of Debian {suite} into {folder} (once)", file=sys.stderr, flush=True)
    apt = folder / "apt"
    for name in (own[0], "libs", "apt"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n")
    # An apt that believes that nothing is installed: it fetches the packages with all that they need.
    options = {"Dir::Etc::SourceList": apt / "sources.list", "Dir::Etc::SourceParts": "/dev/null"}
    options |= {"Dir::State::Lists": apt / "lists", "Dir::State::status": "/dev/null", "Dir::Cache": apt / "cache"}
    options |= {"Acquire::Languages": "none", "APT::Sandbox::User": "root", "Debug::NoLocking": "1"}
    words = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    run(*words, "update")
    run(*words, "install", "--yes", "--download-only", "--no-install-recommends", *wanted)
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        if package.name.startswith(own):
            _unpack(package, folder / own[0])
        elif package.name.startswith("lib"):
            _unpack(package, folder / "libs")  # the rest are tools that the machine has
    for program in (folder / own[0] / "usr/sbin").glob("*-wlm"):  # what Debian's alternatives would link
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    (libc,) = (apt / "cache/archives").glob("libc6_*.deb")
    older = ("dpkg", "--compare-versions", libc.name.split("_")[1].replace("%3a", ":"), "lt", _own_libc())
    if subprocess.run(older).returncode == 0:
        (folder / "older").touch()
    shutil.rmtree(apt)


def _unpack(package: Path, target: Path) -> None:
    for name in ("bin", "sbin", "lib", "lib64"):  # an older suite has them apart from /usr
        (target / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (target / name).is_symlink():
            (target / name).symlink_to(f"usr/{name}")
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as content:
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", target], stdin=content.stdout, check=True)
    if content.returncode:
        raise NoRelease(f"{package.name}: cannot be unpacked.")


def codename() -> str:
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def mirror() -> str:
    """The one that apt is set up with for this machine's release: it has the other suites, too."""
    said = run("apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {codename()}").split()
    if not said:
        raise NoRelease("apt-get indextargets: names no mirror. Run apt-get update.")
    return said[0]


def _own_libc() -> str:
    return run("dpkg-query", "-W", "-f", "${Version}\\n", "libc6").split()[0]


def run(*words: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise NoRelease(f"{words[0]}: exit {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def enter(folder: Path) -> None:
    """Put the release into this process's own view of /usr, for itself and its children."""
    show(folder, "slurm", OVERLAY)
    plugins = f"usr/lib/{platform.machine()}-linux-gnu/slurm-wlm"
    run("mount", "--bind", f"{folder}/slurm/{plugins}", f"/{plugins}")  # Slurm loads every plugin that it finds there


def show(folder: Path, own: str, name: str) -> None:
    """Lay an overlay of that name over /usr, in a mount namespace of this process: packages of fetch_packages()."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise NoRelease(f"unshare: {os.strerror(ctypes.get_errno())}. A mount namespace of its own is needed.")
    # glibc runs what was linked against an older one, so the newer libraries lie above.
    lower = f"/usr:{folder}/libs/usr" if (folder / "older").exists() else f"{folder}/libs/usr:/usr"
    run("mount", "--make-rslave", "/")
    run("mount", "-t", "overlay", name, "-o", f"ro,lowerdir={folder}/{own}/usr:{lower}", "/usr")


def main(release: str = "", *command: str) -> int:
    """Does not return if the command can be started."""
    if release not in SUITES or not command:
        print(f"usage: python -m tests.slurm.release {'|'.join(SUITES)} COMMAND...", file=sys.stderr)
        return 2
    if reason := packages.why_not():
        print(reason, file=sys.stderr)
        return 1
    try:
        packages.install()  # munge and the database are the machine's
        enter(fetch(release))
    except (NoRelease, RuntimeError, OSError) as error:
        print(f"no Slurm {release} here: {error}", file=sys.stderr)
        return 1
    os.execvp(command[0], command)
    raise AssertionError("execvp returns only by an error")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
