"""File systems of the site's machines, made once and kept: a Debian by debootstrap, and over it what each role has.

A machine runs on an overlay: its own changes, the packages of its role, the system. What is kept has a digest of its
recipe in its name, in the folder where this machine keeps container images as well. The site's network leads nowhere
else, so whatever the docs install is fetched here, through this machine's own settings of apt, pip and npm: packages of
Debian into apt's archives, wheels and npm packages into folders that the site's settings name.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path("/var/lib/carme-hub-images")
BUILDING = ".building-site"
SYSTEM = (
    *("systemd", "systemd-sysv", "dbus", "libpam-systemd", "iproute2", "procps", "ca-certificates"),
    *("munge", "slurm-client", "nslcd", "libnss-ldapd", "libpam-ldapd"),
)
#: What an administrator had installed on each kind of machine.
ROLES = {
    "hub": ("openssh-client", "logrotate"),
    "controller": ("slurmctld", "slurmdbd", "mariadb-server", "slapd", "ldap-utils", "openssh-server"),
    "nodes": ("slurmd",),
}
#: Where the machines find wheels and npm's packages; below /usr, which a build of an image sees, too.
WHEELS, OUR_WHEEL, NPM = "/usr/local/share/wheels", "/usr/local/share/our-wheel", "/usr/local/share/npm"
#: Whom this machine trusts; a mirror nearby may have a certificate of its own.
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
ANSWERS = """
slapd slapd/domain string site.example
slapd shared/organization string site
slapd slapd/internal/adminpw password
slapd slapd/internal/generated_adminpw password
libnss-ldapd libnss-ldapd/nsswitch multiselect passwd, group
"""

_RELEASE = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(), re.MULTILINE))


def say(text: str) -> None:
    """Print progress, past pytest's capture."""
    print(f"[site] {text}", file=sys.__stderr__, flush=True)


def run(*argv: str | Path, **more: object) -> str:
    """Run a command of this machine and return its output; fail with what it said."""
    words = [str(word) for word in argv]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-4000:]}")
    return str(done.stdout)


def kept(name: str, recipe: object, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; where it is missing it is filled under another name and renamed."""
    digest = sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
    folder = CACHE / f"site-{name}-{digest}"
    if folder.exists():
        return folder
    say(f"making {folder.name}")
    began, new = time.monotonic(), CACHE / f"{BUILDING}-{name}"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    fill(new)
    new.rename(folder)
    say(f"{folder.name} is ready after {time.monotonic() - began:.0f} s")
    return folder


def layers(role: str, documented: Sequence[str]) -> list[Path]:
    """Return the folders of a role's machine, the uppermost first.

    Args:
        documented: what the docs say after ``apt-get install`` on it; those packages are fetched, not installed.
    """
    sources = _apt_sources()
    release = [_RELEASE["VERSION_CODENAME"], sources, SYSTEM, ANSWERS]
    system = kept("system", release, lambda tree: _fill_system(tree, sources))
    packages = [*ROLES[role]]
    top = kept(role, [release, packages, documented], lambda tree: _fill_role(tree, system, packages, documented))
    return [top, system]


def _apt_sources() -> str:
    """Return this machine's own sources of its release, as deb822 or in lines: both may be in one answer."""
    suite = _RELEASE["VERSION_CODENAME"]
    found = []
    for file in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        text = file.read_text() if file.is_file() else ""
        if file.suffix == ".sources":
            stanzas = re.split(r"\n\s*\n", text)
            lines = [_lines_of(stanza) for stanza in stanzas if re.search(rf"^Suites:.*\b{suite}\b", stanza, re.M)]
            found += [line for each in lines for line in each]
        else:
            found += re.findall(rf"^deb .*://\S+ {suite}\S* .*$", text, re.MULTILINE)
    if not found:
        raise RuntimeError(f"no source of Debian {suite} in /etc/apt; tests/site needs one")
    return "\n".join(found) + "\n"


def _lines_of(stanza: str) -> list[str]:
    """Return a deb822 stanza as lines of sources.list."""
    words = {name.lower(): value for name, value in re.findall(r"^([\w-]+):\s*(.*)$", stanza, re.MULTILINE)}
    if "deb" not in words.get("types", "deb").split() or words.get("enabled", "yes") == "no":
        return []
    key = f"[signed-by={words['signed-by']}] " if words.get("signed-by", "").startswith("/") else ""
    components = words.get("components", "")
    uris, suites = words["uris"].split(), words["suites"].split()
    return [f"deb {key}{uri} {suite} {components}" for uri in uris for suite in suites]


def _fill_system(tree: Path, sources: str) -> None:
    suite = _RELEASE["VERSION_CODENAME"]
    mirror = re.search(rf"^deb (?:\[\S+\] )?(\S+) {suite} ", sources, re.MULTILINE)
    if mirror is None:
        raise RuntimeError(f"no source of the suite {suite} itself in /etc/apt")
    run("debootstrap", "--variant=minbase", suite, tree, mirror[1])
    (tree / "etc/apt/sources.list").write_text(sources)
    for key in re.findall(r"signed-by=([^\]\s]+)", sources):
        (tree / key.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(key, tree / key.lstrip("/"))
    settings = [line for line in run("apt-config", "dump").splitlines() if re.match("Acquire::(http|Retries)", line)]
    (tree / "etc/apt/apt.conf.d/10this-machine").write_text("\n".join(settings) + "\n")
    if AUTHORITIES.exists():  # until ca-certificates is installed, which writes its own
        (tree / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        shutil.copy(AUTHORITIES, tree / "etc/ssl/certs")
    _inside(tree, "apt-get update -q", f"debconf-set-selections <<'END'\n{ANSWERS}END", _install(SYSTEM))
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/hostname").unlink(missing_ok=True)


def _fill_role(tree: Path, system: Path, packages: Sequence[str], documented: Sequence[str]) -> None:
    with overlay([system], tree, CACHE / f"{BUILDING}-work", CACHE / f"{BUILDING}-root") as root:
        fetch = [f"apt-get install -q --download-only {words}" for words in documented]
        _inside(root, _install(packages), "rm -f /var/cache/apt/archives/*.deb", *fetch)


def _install(packages: Sequence[str]) -> str:
    return f"apt-get install -q -y --no-install-recommends {shlex.join(packages)}"


def _inside(tree: Path, *commands: str, bind: Mapping[Path, str] = MappingProxyType({})) -> None:
    """Run commands in a tree that is not booted, with this machine's network; no daemon starts."""
    policy = tree / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    script = "\n".join(["set -e", "export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8", *commands])
    nspawn = ("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--pipe", "--link-journal=no")
    binds = [f"--bind={here}:{there}" for here, there in bind.items()]
    run(*nspawn, *binds, "--resolv-conf=copy-host", f"--directory={tree}", "/bin/bash", "-c", script)
    policy.unlink()


@contextmanager
def overlay(lower: Sequence[Path], upper: Path, work: Path, root: Path) -> Iterator[Path]:
    """Mount an overlay at ``root`` for as long as this lasts."""
    mount(lower, upper, work, root)
    try:
        yield root
    finally:
        run("umount", root)
        root.rmdir()
        shutil.rmtree(work)


def mount(lower: Sequence[Path], upper: Path, work: Path, root: Path) -> None:
    """Mount an overlay; its changes go to ``upper``."""
    for folder in (upper, work, root):
        folder.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={':'.join(map(str, lower))},upperdir={upper},workdir={work}"
    run("mount", "-t", "overlay", "overlay", "-o", options, root)


def wheel(folder: Path) -> Path:
    """Build the wheel of the working tree as it is, committed or not, by its sdist, as `make release-check` does."""
    source, uv = folder / "source", Path(sys.executable).with_name("uv")
    listed = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    run(uv, "build", "--quiet", "--python", sys.executable, "--out-dir", folder, source)
    shutil.rmtree(source)
    (found,) = folder.glob("*.whl")
    return found


def wheels(ours: Path) -> Path:
    """Return a folder of the wheels that our package and the default image need, by this machine's settings of pip."""
    # The list is the product's: `carme-hub image build` asks for these packages.
    code = "import json; from carme_hub.sandbox.images.packages import base_packages as p; print(json.dumps(p()))"
    image = json.loads(run(sys.executable, "-c", code, cwd=ROOT))

    def fill(folder: Path) -> None:
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder, ours, *image, cwd="/")
        for own in folder.glob("carme_hub-*.whl"):
            own.unlink()

    return kept("wheels", [(ROOT / "setup.cfg").read_text(), image, sys.version], fill)


def npm_packages(documented: Sequence[str], hub: Sequence[Path]) -> Path:
    """Return a cache of npm's with what the docs say after ``npm install``; its file ``registry`` has their address.

    Debian's own npm fills it, in a copy of the hub's machine: what another release has cached, it does not find.

    Args:
        hub: the layers of the hub's machine.
    """

    def fill(folder: Path) -> None:
        new = [CACHE / f"{BUILDING}-{name}" for name in ("changes", "work", "root")]
        with overlay(hub, *new) as root:
            for file in (Path.home() / ".npmrc", Path("/etc/npmrc"), AUTHORITIES):
                if file.exists():
                    shutil.copy(file, root / str(file).lstrip("/"))
            options = f"--cache={NPM} --no-fund --no-audit --loglevel=error"
            _inside(
                *(root, "apt-get install -q -y --no-install-recommends npm"),
                *(f"npm install {options} {words}" for words in documented),
                f"npm config get registry >{NPM}/registry",
                bind={folder: NPM},
            )
        shutil.rmtree(new[0])

    return kept("npm", [list(documented), [folder.name for folder in hub]], fill)
