"""Apptainer for tests, on a Debian without a package of it: from sid, with its own C library, in a separate folder.

Nothing of the system changes: apt fetches the packages with private lists from the mirror that this machine uses and
checks them by Debian's keys; they are unpacked into one folder and set to use their own loader. It takes about ten
seconds, once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from carme_hub.errors import SandboxError
from carme_hub.sandbox.build_lock import locked
from carme_hub.sandbox.images.build import image_cache

SUITE = "sid"
PACKAGES = ("apptainer", "libc6")
#: Debian's archive keys, for an apt source that names none.
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+main\b")


def ensure_apptainer(cache: Path | None = None, progress: Callable[[str], None] = print) -> Path:
    """Return the path of Apptainer: the system's where installed, else a copy, which is fetched if missing.

    Raises:
        SandboxError: there is none, and it cannot be fetched.
    """
    own = shutil.which("apptainer")
    if own:
        return Path(own)
    cache = image_cache() if cache is None else cache
    folder = cache / "apptainer"
    program = folder / "usr/bin/apptainer"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache):
        if (folder / "ready").exists():
            return program
        shutil.rmtree(folder, ignore_errors=True)
        progress(f"Fetching Apptainer from Debian {SUITE}")
        folder.mkdir(mode=0o755)
        for package in _fetch(folder / "fetched"):
            _run("dpkg-deb", "-x", str(package), str(folder))
        shutil.rmtree(folder / "fetched")
        _relocate(folder)
        answer = _run(str(program), "version")
        (folder / "ready").write_text(answer)
    return program


def mirror(sources: Path = Path("/etc/apt")) -> tuple[str, str]:
    """Return address and keyring of the Debian mirror that this machine uses."""
    for file in sorted((*sources.glob("*.list"), *sources.glob("sources.list.d/*"))):
        text = file.read_text(encoding="utf-8", errors="replace")
        for stanza in re.split(r"\n\s*\n", text):
            found = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
            debian = "debian" in found.get("URIs", "") and "security" not in found.get("URIs", "")
            if debian and "main" in found.get("Components", "") and "deb" in found.get("Types", "").split():
                return found["URIs"].split()[0], found.get("Signed-By", KEYRING).strip() or KEYRING
        for match in filter(None, map(_LINE.match, text.splitlines())):
            if "debian" in match["uri"] and "security" not in match["uri"]:
                key = re.search(r"signed-by=(\S+)", match["options"] or "")
                return match["uri"], key[1] if key else KEYRING
    raise SandboxError("Apptainer cannot be fetched: apt has no Debian mirror in its sources")


def _fetch(folder: Path) -> list[Path]:
    """Return the packages, which apt downloads and verifies with private lists."""
    uri, keyring = mirror()
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "cache/archives/partial").mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={keyring}] {uri} {SUITE} main\n", encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Retries": "3",
        "Acquire::Languages": "none",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", *options, "-q", "update")
    _run("apt-get", *options, "-q", "download", *PACKAGES, cwd=folder)
    found = sorted(folder.glob("*.deb"))
    if len(found) != len(PACKAGES):
        raise SandboxError(f"Apptainer cannot be fetched: apt brought {[path.name for path in found]}")
    return found


def _relocate(folder: Path) -> None:
    """Make the unpacked programs find their settings, their loader and their C library in the new folder."""
    usr = folder / "usr"
    for name in ("etc", "var"):
        (folder / name).rename(usr / name)
        (usr / "lib" / name).symlink_to(f"../{name}")
    [starter] = usr.glob("lib/*/apptainer/bin/starter")
    libraries = starter.parents[2]
    [loader] = libraries.glob("ld-linux*.so.*")
    for program in (usr / "bin/apptainer", starter):
        _run("patchelf", "--set-interpreter", str(loader), "--set-rpath", str(libraries), str(program))
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o755)
            if os.geteuid() == 0:
                os.chown(path, 0, 0)


def _run(*argv: str, cwd: Path | None = None) -> str:
    """Run one command of the preparation."""
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(argv, env=environ, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"Apptainer cannot be had: {argv[0]}: {error}") from error
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-600:]
        raise SandboxError(f"Apptainer cannot be had: {argv[0]} ended with {done.returncode}: {words}")
    return done.stdout.strip()
