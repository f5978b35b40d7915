"""Packages of the working tree, built as docs/howto/packages.md says, in a copy of a Debian that has what it names."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from machines import STATE
from trees import AUTHORITIES, BUILDING, CACHE, ROOT, _inside, _install, kept, layers, overlay, run, say, wheel

#: What the page names for the two builds, and on a machine what the packages depend on.
TOOLS = ("python3-venv", "npm", "rpm")
NEEDED = ("python3", "nodejs", "sudo", "adduser", "rpm")


def forge_slurm(prefix: Path) -> None:
    """Make commands of Slurm below a prefix that answer as a site does, those of the unit tests of setup."""
    file = ROOT / "tests/unit/cli/setup/forged_setup.py"
    spec = importlib.util.spec_from_file_location("forged_setup", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.forge_commands(prefix)


def base(name: str, packages: tuple[str, ...]) -> list[Path]:
    """Return the folders of a machine with some packages, the uppermost first."""
    lower = layers("hub", [])

    def fill(tree: Path) -> None:
        with overlay(lower, tree, CACHE / f"{BUILDING}-work", CACHE / f"{BUILDING}-root") as root:
            _inside(root, _install(packages), "rm -f /var/cache/apt/archives/*.deb")

    return [kept(name, [[str(folder) for folder in lower], packages], fill), *lower]


def build() -> dict[str, Path]:
    """Build the Debian package and the RPM, and return their files, by ``deb`` and ``rpm``."""
    out, changes = STATE / "packages", STATE / "packages-tree"
    out.mkdir(parents=True)
    ours = wheel(out)
    lower = base("package-tools", TOOLS)
    version = ours.name.split("-")[1]
    say(f"building packages of {ours.name}")
    script = (
        "export PIP_CERT=/etc/ssl/certs/ca-certificates.crt HOME=/root",
        f"/repository/deploy/packages/debian/build /out/{ours.name} /out",
        # Debian's rpm and Python in the place of EL's.
        f"rpmbuild -bb --quiet --define 'version_ {version}' --define 'wheel /out/{ours.name}'"
        " --define '_topdir /tmp/rpm'"
        " --define 'tree_ /repository/deploy/packages/tree' --define 'python_ python3' --define '_rpmdir /out'"
        " /repository/deploy/packages/rpm/carme-hub.spec",
    )
    with overlay(lower, changes, STATE / "packages-work", STATE / "packages-root") as root:
        for file in (Path.home() / ".npmrc", Path("/etc/npmrc"), AUTHORITIES):
            if file.exists():
                shutil.copy(file, root / str(file).lstrip("/"))
        _inside(root, *script, bind={out: "/out", ROOT: "/repository"})
    shutil.rmtree(changes)
    (deb,), (rpm,) = out.glob("*.deb"), out.rglob("*.rpm")
    return {"deb": deb, "rpm": rpm}


def next_version(deb: Path) -> Path:
    """Return the same Debian package as a later version, to upgrade to."""
    place = deb.with_name("next")
    run("dpkg-deb", "-R", deb, place)
    control = place / "DEBIAN/control"
    version = deb.name.split("_")[1]
    control.write_text(control.read_text().replace(f"Version: {version}\n", f"Version: {version}+next\n"))
    new = deb.with_name(deb.name.replace(version, f"{version}+next"))
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", place, new)
    shutil.rmtree(place)
    return new
