"""A small system for images, made of the Debian packages that this machine has installed, without the network.

Files are taken package by package, so nothing that is not Debian's comes along: no settings of this machine, no keys.
What the packages' own scripts would have made (certificates' links, alternatives, the loader's cache) is made here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

from carme_hub.errors import SandboxError

#: What must be there; what these depend on comes with them.
SEEDS = (
    *("base-files", "base-passwd", "bash", "bsdutils", "ca-certificates", "coreutils", "dash", "diffutils"),
    *(
        "findutils",
        "fontconfig-config",
        "grep",
        "gzip",
        "hostname",
        "libc-bin",
        "libgomp1",
        "libstdc++6",
        "less",
        "mawk",
    ),
    *("ncurses-base", "ncurses-bin", "procps", "python3", "python3-venv", "sed", "tar", "tzdata", "util-linux"),
)
LEFT_OUT = (
    *("/usr/share/bug/", "/usr/share/doc/", "/usr/share/info/", "/usr/share/initramfs-tools/", "/usr/share/lintian/"),
    *("/usr/share/locale/", "/usr/share/man/", "/lib/systemd/", "/usr/lib/systemd/", "/var/lib/", "/root/"),
)
#: Made by the packages' scripts on this machine; none of them is secret.
MADE_BY_SCRIPTS = ("etc/ssl/certs", "etc/ca-certificates.conf", "etc/nsswitch.conf", "etc/localtime", "etc/mime.types")
INFO = Path("/var/lib/dpkg/info")
_ALTERNATIVE = re.compile(r"^([a-z0-9][a-z0-9+.-]+)")


@cache
def packages() -> dict[str, tuple[str, str]]:
    """Return the packages of the image: name to version and architecture."""
    asked = "${Package}\t${Version}\t${Architecture}\t${Pre-Depends}, ${Depends}\t${Provides}\t${db:Status-Abbrev}\n"
    try:
        done = subprocess.run(["dpkg-query", "-W", "-f", asked], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxError("a full image can be made on Debian only: it is made of installed packages") from error
    needs: dict[str, str] = {}
    known: dict[str, tuple[str, str]] = {}
    provided: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, version, architecture, depends, provides, state = line.split("\t")
        if state.startswith("ii"):
            needs[name], known[name] = depends, (version, architecture)
            for other in filter(None, (word.strip().split(" ")[0] for word in provides.split(","))):
                provided.setdefault(other, name)
    missing = [name for name in SEEDS if name not in known]
    if missing:
        raise SandboxError(f"a full image needs these packages installed: {' '.join(missing)}")
    found: dict[str, tuple[str, str]] = {}
    waiting = list(SEEDS)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = known[name]
        for group in needs[name].split(","):
            names = [match[1] for choice in group.split("|") if (match := _ALTERNATIVE.match(choice.strip()))]
            there = [choice if choice in known else provided.get(choice, "") for choice in names]
            waiting += [choice for choice in there if choice][:1]
    return dict(sorted(found.items()))


def inputs() -> str:
    """Return a digest of everything that decides what the system will be."""
    text = Path(__file__).read_text(encoding="utf-8") + repr(packages())
    return sha256(text.encode()).hexdigest()


def copy_system(tree: Path) -> None:
    """Copy the packages' files into a tree."""
    for link in Path("/").iterdir():
        if link.is_symlink() and str(link.readlink()).removeprefix("/").startswith("usr/"):
            target = str(link.readlink()).removeprefix("/")
            (tree / target).mkdir(parents=True, exist_ok=True)
            (tree / link.name).symlink_to(target)
    for path in _files():
        _copy(path, tree)
    for name in MADE_BY_SCRIPTS:
        _copy_made(Path("/") / name, tree / name)
    for name in ("passwd", "group"):
        shutil.copy2(f"/usr/share/base-passwd/{name}.master", tree / "etc" / name)
    (tree / "etc/mtab").symlink_to("../proc/self/mounts")
    _alternatives(tree)
    subprocess.run(["/sbin/ldconfig", "-r", str(tree)], check=True)


def _copy_made(source: Path, target: Path) -> None:
    """Copy a file or a folder that a package's script has made."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def _files() -> Iterator[Path]:
    """Return every file of every package of the image."""
    for name, (_, architecture) in packages().items():
        listing = INFO / f"{name}.list"
        if not listing.exists():
            listing = INFO / f"{name}:{architecture}.list"
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("/") and line != "/." and not f"{line}/".startswith(LEFT_OUT):
                yield Path(line)


def _copy(path: Path, tree: Path) -> None:
    """Copy one file to where it lies really: packages still name /bin/bash, which is /usr/bin/bash."""
    if not os.path.lexists(path):
        return  # left out when this machine was made, as manual pages often are
    real = Path(os.path.realpath(path.parent)) / path.name
    target = tree / real.relative_to("/")
    if real.is_symlink() or not real.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(target):
            shutil.copy2(real, target, follow_symlinks=False)
    else:
        target.mkdir(parents=True, exist_ok=True)


def _alternatives(tree: Path) -> None:
    """Make the links of /etc/alternatives whose programs came along, and those that lead to them."""
    folder = tree / "etc/alternatives"
    folder.mkdir(parents=True, exist_ok=True)
    for link in Path("/etc/alternatives").iterdir():
        if link.is_symlink() and os.path.lexists(tree / str(link.readlink()).lstrip("/")):
            (folder / link.name).symlink_to(link.readlink())
    for place in Path("/usr/bin").iterdir():
        leads = place.readlink() if place.is_symlink() else place
        here = tree / "usr/bin" / place.name
        wanted = leads.parent == Path("/etc/alternatives") and os.path.lexists(folder / leads.name)
        if wanted and not os.path.lexists(here):
            here.symlink_to(leads)
