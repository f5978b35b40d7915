"""The Debian package and the RPM on a booted machine: installed, set up, upgraded under a hub, purged, erased."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from machines import STATE, Machine, Network, only_one, remove_all, wait_for
from package_builds import NEEDED, base, build, forge_slurm, next_version

import carme_hub

pytestmark = pytest.mark.nightly
ANSWERS = {
    "host": "hub.example.org",
    "web_server": "none",
    "hub_address": "127.0.0.1",
    "group": "users",
    "submit_via": "sudo",
    "image": "/opt/images/default",
    "container_runtime": "bubblewrap",
    "slurm_prefix": str(STATE / "forged"),
}
#: Files whose names have the product's, but for what the tests brought.
TRACES = f"find / -xdev -name '*carme*' -not -path '/proc/*' -not -path '{STATE}*' -not -path '/packages*'"


@pytest.fixture(scope="module")
def packages() -> Iterator[dict[str, Path]]:
    """Return the packages; no other run of the site meanwhile, and everything is gone afterwards."""
    if os.geteuid() != 0:
        raise pytest.UsageError("tests/site boots machines: run it as root")
    with only_one():
        remove_all()
        try:
            yield build()
        finally:
            remove_all()


@pytest.fixture(scope="module")
def machine(packages: dict[str, Path]) -> Iterator[Machine]:
    """Return a booted machine with what the packages depend on, and forged commands of Slurm."""
    forged = STATE / "forged"
    forge_slurm(forged)
    network = Network()
    network.up()
    namespace = network.join("portal", "10.0.0.1")
    binds = {packages["deb"].parent: "/packages", forged: f"+{forged}"}
    machine = Machine("hub", "portal", namespace, base("package-machine", NEEDED), binds)
    machine.make()
    machine.boot()
    (machine.root / "root/site.yaml").write_text(yaml.safe_dump(ANSWERS))
    machine.before = set(machine.run(f"{TRACES} || true").split())  # type: ignore[attr-defined]
    try:
        yield machine
    finally:
        machine.shut_down()


def install(machine: Machine, deb: Path) -> str:
    return machine.run(f"apt-get install -q -y --no-install-recommends /packages/{deb.name}", limit=300)


def page_is_there(machine: Machine) -> bool:
    fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/hub/login').read().decode())"
    done = machine.try_run(f'/opt/carme-hub/bin/python -c "{fetch}"')
    return done.returncode == 0 and "<form" in done.stdout


def journal(machine: Machine) -> str:
    return machine.try_run("journalctl --no-pager -n 60 -u carme-hub -u carme-hub-proxy").stdout


def main_pid(machine: Machine, unit: str) -> str:
    return machine.run(f"systemctl show -p MainPID --value {unit}").strip()


def test_the_debian_package_installs_a_hub_that_waits_for_its_configuration(
    machine: Machine, packages: dict[str, Path]
) -> None:
    said = install(machine, packages["deb"])
    assert "carme-hub setup" in said
    assert machine.run("carme-hub --version").strip() == carme_hub.__version__
    assert machine.run("id -u carme-hub").strip() == "950"
    for unit in ("carme-hub", "carme-hub-proxy"):
        assert machine.try_run(f"systemctl is-enabled {unit}").stdout.strip() == "disabled"
        machine.run(f"systemctl start {unit}")  # its condition does not hold, which is no failure
        assert machine.try_run(f"systemctl is-active {unit}").stdout.strip() == "inactive"
    # Nothing knows where it was built.
    found = machine.try_run("grep -rlIE --exclude-dir=node_modules '/tmp/tmp[.][A-Za-z0-9]+/opt' /opt/carme-hub").stdout
    assert found == ""
    assert machine.run("/opt/carme-hub/bin/jupyterhub --version")
    assert machine.run("dpkg --verify carme-hub") == ""


def test_setup_starts_the_hub_of_the_package(machine: Machine, packages: dict[str, Path]) -> None:
    said = machine.run("carme-hub setup --answers /root/site.yaml --no-input --yes --no-test", limit=200)
    assert "wrote /etc/systemd/system/carme-hub.service" in said
    assert "/opt/carme-hub/bin/jupyterhub" in machine.run("systemctl cat carme-hub")
    wait_for(lambda: page_is_there(machine), 60, "the login page", lambda: journal(machine))


def test_an_upgrade_restarts_the_hub_and_not_the_proxy(machine: Machine, packages: dict[str, Path]) -> None:
    new = next_version(packages["deb"])
    hub, proxy = main_pid(machine, "carme-hub"), main_pid(machine, "carme-hub-proxy")
    said = install(machine, new)
    assert "running again" in said, said
    wait_for(lambda: page_is_there(machine), 60, "the login page", lambda: journal(machine))
    assert main_pid(machine, "carme-hub") not in (hub, "0")
    assert main_pid(machine, "carme-hub-proxy") == proxy
    assert machine.run("ls /var/lib/carme-hub/carme-hub.sqlite.2*")  # the copy of the database
    assert machine.try_run("test -e /run/carme-hub-upgrade").returncode != 0
    assert "nothing to do" in machine.run("carme-hub setup --answers /root/site.yaml --no-input --no-test")


def test_a_removed_package_leaves_configuration_and_data(machine: Machine, packages: dict[str, Path]) -> None:
    machine.run("apt-get remove -q -y carme-hub")
    assert machine.try_run("pgrep -u carme-hub").stdout == ""
    assert machine.try_run("test -e /opt/carme-hub").returncode != 0
    assert machine.run("ls /etc/carme-hub/jupyterhub_config.py /var/lib/carme-hub/carme-hub.sqlite")


def test_a_purged_package_leaves_nothing(machine: Machine, packages: dict[str, Path]) -> None:
    machine.run("apt-get purge -q -y carme-hub")
    left = set(machine.run(f"{TRACES} || true").split()) - machine.before  # type: ignore[attr-defined]
    assert left == set()
    assert machine.try_run("getent passwd carme-hub; getent group carme-hub").stdout == ""
    assert machine.run("systemctl --failed --no-legend").strip() == ""


def test_the_rpm_installs_the_same_and_can_be_erased(machine: Machine, packages: dict[str, Path]) -> None:
    name = packages["rpm"].relative_to(packages["deb"].parent)
    machine.run(f"rpm --install --nodeps --force-debian /packages/{name}", limit=300)
    assert machine.run("carme-hub --version").strip() == carme_hub.__version__
    assert machine.run("id -u carme-hub").strip() == "950"
    assert "ConditionPathExists" in machine.run("systemctl cat carme-hub carme-hub-proxy")
    machine.run("rpm --erase --nodeps carme-hub", limit=120)
    assert machine.try_run("test -e /opt/carme-hub -o -e /usr/bin/carme-hub").returncode != 0
    machine.run("userdel carme-hub")
