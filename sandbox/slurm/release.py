"""Build another Slurm release from Debian's source archive, and keep it in a cache folder.

apt's own downloader fetches the archive from the mirrors that the machine's apt already uses, and checks it against
the sum written here; then configure, make and make install build it under its own prefix.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from carme_hub.errors import SandboxError
from carme_hub.sandbox.build_lock import locked

Progress = Callable[[str], None]

#: Several slurmd on one machine, as Debian builds it: without this option only the first node has an address.
#: Without optimization it compiles in a part of the time; its daemons serve tests alone.
_OPTIONS = ("--enable-multiple-slurmd", "--disable-debug", "-q", "CFLAGS=-O0 -g0")
#: configure and libtool are shell scripts, and would choose bash, which takes a fifth more time for all of it.
_ENVIRONMENT = {**os.environ, "CONFIG_SHELL": "/bin/sh"}
_APT_HELPER = "/usr/lib/apt/apt-helper"


@dataclass(frozen=True, slots=True)
class Release:
    """One release that can be built: its full version, and the checksum of Debian's source archive."""

    version: str
    sha256: str

    @property
    def path(self) -> str:
        """The path of the archive on every Debian mirror."""
        return f"pool/main/s/slurm-wlm/slurm-wlm_{self.version}.orig.tar.gz"


RELEASES = {"24.11": Release("24.11.5", "e1a5547edd212c38b5e3230a284133f777b32746551f094aaa81cc4af375e332")}


def cache_folder() -> Path:
    """Return the folder in which builds are kept."""
    if os.geteuid() == 0:
        return Path("/var/cache/carme-hub")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "carme-hub"


def prefix_of(release: str) -> Path:
    """Return where a release is, or would be."""
    return cache_folder() / f"slurm-{_known(release).version}"


def is_built(release: str) -> bool:
    """Return whether a release was built completely, with the current options."""
    done = prefix_of(release) / ".complete"
    return done.exists() and done.read_text() == _recipe(release)


def _recipe(release: str) -> str:
    return " ".join((_known(release).sha256, *_OPTIONS))


def build(release: str, progress: Progress) -> Path:
    """Build a release where it is not built yet, and return its prefix, for ``up --slurm``."""
    known, prefix = _known(release), prefix_of(release)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with locked(cache_folder(), prefix.name):
        if is_built(release):
            progress(f"Slurm {known.version} is built already")
        else:
            _build(known, release, prefix, progress)
    return prefix


def _build(known: Release, release: str, prefix: Path, progress: Progress) -> None:
    _install_packages(progress)
    work = prefix.with_name(f"{prefix.name}-build")
    for folder in (work, prefix):  # of an interrupted attempt
        if folder.exists():
            shutil.rmtree(folder)
    work.mkdir()
    source = _unpack(_fetch(known, work, progress), work)
    log = cache_folder() / f"{prefix.name}.log"
    jobs = str(os.cpu_count() or 1)
    steps: list[tuple[str, Sequence[str]]] = [
        ("configure", ["./configure", f"--prefix={prefix}", f"--sysconfdir={prefix}/etc", *_OPTIONS]),
        ("make", ["nice", "-n", "10", "make", "-s", "-j", jobs]),
        ("install", ["make", "-s", "install"]),
    ]
    with log.open("wb") as output:
        for name, argv in steps:
            progress(f"{name} …")
            begun = time.monotonic()
            done = subprocess.run(
                argv, cwd=source, env=_ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode != 0:
                raise SandboxError(f"{name} failed; see the end of {log}")
            progress(f"{name} took {time.monotonic() - begun:.0f} s")
    for needed in ("sbin/slurmctld", "sbin/slurmdbd", "sbin/slurmrestd", "lib/slurm/auth_jwt.so"):
        if not (prefix / needed).exists():
            raise SandboxError(f"{needed} was not built: a library was not found; see {log}")
    if not (prefix / "lib/slurm/job_submit_lua.so").exists():
        raise SandboxError(f"job_submit/lua was not built: Lua was not found; see {log}")
    shutil.rmtree(work)
    (prefix / ".complete").write_text(_recipe(release))


def _known(release: str) -> Release:
    try:
        return RELEASES[release]
    except KeyError:
        raise SandboxError(f"Only {', '.join(RELEASES)} can be built, not {release!r}") from None


def _mirrors() -> list[str]:
    """Return the Debian mirrors in the configuration of this machine's apt."""
    answer = _ask(["apt-get", "indextargets", "--format", "$(REPO_URI)|$(ORIGIN)|$(COMPONENT)|$(CREATED_BY)"])
    found = []
    for line in answer.splitlines():
        uri, origin, component, kind = [*line.split("|"), "", "", ""][:4]
        if (origin, component, kind) == ("Debian", "main", "Packages") and uri not in found:
            found.append(uri)
    if not found:
        raise SandboxError("This machine's apt knows no Debian mirror: run apt-get update, or is this not Debian?")
    return found


def _fetch(release: Release, folder: Path, progress: Progress) -> Path:
    target = folder / "slurm.tar.gz"
    message = ""
    for mirror in _mirrors():
        url = f"{mirror.rstrip('/')}/{release.path}"
        progress(f"fetching {release.path.rpartition('/')[2]}")
        argv = [_APT_HELPER, "download-file", url, str(target), f"SHA256:{release.sha256}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 0 and target.exists():
            return target
        message = done.stderr.strip() or done.stdout.strip()
    raise SandboxError(f"The source archive of Slurm {release.version} could not be fetched: {message}")


def _unpack(archive: Path, folder: Path) -> Path:
    _ask(["tar", "-xzf", str(archive), "-C", str(folder), "--no-same-owner"])
    return next(path for path in folder.iterdir() if path.is_dir())


def _install_packages(progress: Progress) -> None:
    wanted = [line for line in _package_list().splitlines() if line and not line.startswith("#")]
    argv = ["dpkg-query", "-W", "-f=${Package} ${db:Status-Abbrev}\n", *wanted]
    known = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in known.splitlines() if line.endswith("ii ") or line.endswith("ii")}
    missing = [name for name in wanted if name not in installed]
    if not missing:
        return
    if os.geteuid() != 0:
        raise SandboxError(f"Install these packages first, as root: apt-get install {' '.join(missing)}")
    progress(f"installing {' '.join(missing)}")
    _ask(["apt-get", "update", "-q"])
    _ask(["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing])


def _package_list() -> str:
    return (Path(__file__).parents[1] / "apt-build-slurm.txt").read_text()


def _ask(argv: Sequence[str]) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(f"{' '.join(argv[:2])} failed: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return done.stdout
