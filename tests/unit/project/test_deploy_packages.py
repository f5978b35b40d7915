"""Recipes of packages: their scripts can be read, name what there is, and remove what they should; built at night."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from rig import real_site
from rig.deploy_tools import DEPLOY

from carme_hub.cli.setup.plan import timer

FOLDER = DEPLOY / "packages"
SHARE = DEPLOY.parent / "share/carme_hub"
PAGE = DEPLOY.parent / "docs/howto/packages.md"
SCRIPTS = {"tree": "bash", "debian/build": "bash", "debian/postinst": "sh", "debian/prerm": "sh", "debian/postrm": "sh"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_is_one_of_its_shell(name: str) -> None:
    done = subprocess.run([SCRIPTS[name], "-n", str(FOLDER / name)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert (FOLDER / name).read_text().startswith(f"#!/bin/{SCRIPTS[name]}\n")


def test_the_scripts_of_the_spec_file_are_shell() -> None:
    text = (FOLDER / "rpm/carme-hub.spec").read_text()
    sections = dict(re.findall(r"^%(pre|post|posttrans|preun|postun)\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == {"pre", "post", "posttrans", "preun", "postun"}
    for name, script in sections.items():
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_every_field_of_the_debian_package_is_filled_in() -> None:
    fields = set(re.findall(r"@(\w+)@", (FOLDER / "debian/control").read_text()))
    assert set(re.findall(r"s/@(\w+)@/", (FOLDER / "debian/build").read_text())) == fields


def test_packages_depend_on_what_the_hub_needs() -> None:
    control = (FOLDER / "debian/control").read_text()
    needed = real_site.packages("hub") - {
        "npm",
        "openssh-client",
    }  # to install by hand; to copy a file to the controller
    assert sorted(name for name in needed if not re.search(rf"[ ,]{name}[ ,\n]", control)) == []
    spec = (FOLDER / "rpm/carme-hub.spec").read_text()
    for name in ("python3.11", "nodejs", "sudo"):
        assert re.search(rf"^Requires:.*\b{re.escape(name)}\b", spec, re.MULTILINE), name


def test_the_user_of_all_packages_is_that_of_the_docs() -> None:
    number = re.search(r"--uid (\d+)", real_site.hub_user())
    assert number is not None
    assert f"number={number[1]}\n" in (FOLDER / "debian/postinst").read_text()
    assert f"--uid {number[1]} " in (FOLDER / "rpm/carme-hub.spec").read_text()
    assert real_site.hub_user() in (FOLDER / "container/Containerfile").read_text()


def test_a_removal_ends_what_setup_lets_start() -> None:
    for name in ("debian/prerm", "rpm/carme-hub.spec"):
        script = (FOLDER / name).read_text()
        assert f"systemctl disable --now {timer('carme-hub')} " in script, name
        assert "systemctl disable --now carme-hub.service carme-hub-proxy.service " in script, name


def test_every_helper_is_in_the_image_and_the_containers_share_what_the_page_says() -> None:
    recipe = (FOLDER / "container/Containerfile").read_text()
    of_nodes = {"carme-stage-out"}  # Slurm's Epilog calls it
    helpers = {file.name for file in (SHARE / "libexec").iterdir() if file.is_file()} - of_nodes
    assert set(re.findall(r"/libexec/(carme-[\w-]+)", recipe)) == helpers
    services = yaml.safe_load((FOLDER / "container/compose.yaml").read_text())["services"]
    assert set(services) == {"hub", "proxy"}
    assert "restart" not in json.dumps(services["hub"]["depends_on"])
    page = PAGE.read_text()
    for volume in services["hub"]["volumes"]:
        here = volume.split(":")[0]
        assert here in page or str(Path(here).parent) in page, here


def test_what_setup_wrote_goes_in_a_purge_and_what_a_person_changed_stays(tmp_path: Path) -> None:
    """Runs the program within postrm on a forged record."""
    script = (FOLDER / "debian/postrm").read_text()
    program = script.partition("<<'END'\n")[2].partition("\nEND\n")[0]
    ours, changed, link = tmp_path / "ours", tmp_path / "changed", tmp_path / "link"
    for file in (ours, changed):
        file.write_text("unit\n")
    link.symlink_to(ours)
    total = hashlib.sha256(b"unit\n").hexdigest()
    changed.write_text("of a person\n")
    record = tmp_path / "record.json"
    names = [str(ours), str(changed), str(link), str(tmp_path / "gone")]
    record.write_text(json.dumps({"version": 1, "answers": {}, "files": {name: [total] for name in names}}))
    done = subprocess.run(
        ["python3", "-I", "-", str(record)], input=program, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0, done.stderr
    assert (ours.exists(), changed.exists(), link.is_symlink()) == (False, True, True)


@pytest.mark.parametrize("unit", ["carme-hub.service", "carme-hub-proxy.service"])
def test_the_units_are_those_that_come_with_the_release(unit: str) -> None:
    text = (SHARE / "systemd" / unit).read_text()
    assert text.count("[Unit]\n") == 1  # where the package adds its condition
    assert "/opt/carme-hub/bin/" in text
    assert unit in (FOLDER / "tree").read_text()
    assert f"/{unit}\n" in (FOLDER / "rpm/carme-hub.spec").read_text()
