"""A cluster whose machines make themselves by the user data of ``deploy/terraform/cloud-init``, with cloud-init itself.

What a cloud has and this machine has not is forged: NFS is a bind mount by a program ``mount`` before the real one; the
packages that user data names are installed before the boot, as the machines reach nothing; there is no shared volume.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import machines
import yaml
from machines import Machine, Network, remove_all, wait_for
from rig.deploy_tools import DEPLOY, terraform
from trees import (
    BUILDING,
    CACHE,
    NPM,
    OUR_WHEEL,
    WHEELS,
    _inside,
    _install,
    kept,
    layers,
    npm_packages,
    overlay,
    run,
    say,
    wheel,
    wheels,
)

HUB, CONTROLLER, NODE = "hub", "controller", "node-001"  # short, as they are in names of interfaces
ADDRESSES = {HUB: "10.0.0.10", CONTROLLER: "10.0.0.11", NODE: "10.0.0.20"}
USER = "alice"
GIVEN = {
    "cluster": "carme",
    "hub": HUB,
    "controller": CONTROLLER,
    "nodes": [NODE],
    "addresses": ADDRESSES,
    "subnet_cidr": "10.0.0.0/24",
    "cpus": 2,
    "memory_mib": 6000,
    "host": "hub.example.org",
    "web_server": "nginx",
    "hub_package": "carme-hub",
}
#: A machine of a cloud has its network to itself.
OPTIONS = ("--capability=CAP_NET_ADMIN",)
#: The folders that the controller exports.
EXPORTS = ("/shared", "/etc/slurm", "/etc/munge")
FORGED_MOUNT = """#!/bin/bash
# Forged NFS: what the controller exports is below /exports.
case "$*" in
*"-t nfs"*) target="${@: -1}" source="${@: -2:1}" && exec /bin/mount --bind "/exports${source#*:}" "$target" ;;
*) exec /bin/mount "$@" ;;
esac
"""
FORGED_SERVER = (
    "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
)
DATA_SOURCE = "datasource_list: [NoCloud, None]\nnetwork: {config: disabled}\n"
#: Seconds in which the slowest machine, the hub, has made itself.
FIRST_BOOT = 900.0


def user_data(folder: Path, password_hash: str) -> dict[str, str]:
    """Return the user data of each machine, rendered by Terraform in a folder."""
    place = folder / "deploy/terraform/cloud-init"
    shutil.copytree(DEPLOY / "terraform/cloud-init", place, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    (folder / "share").symlink_to(DEPLOY.parent / "share")
    users = {USER: {"uid": 10001, "password_hash": password_hash}}
    (place / "given.auto.tfvars.json").write_text(json.dumps({**GIVEN, "users": users}))
    for command in (["init", "-input=false"], ["apply", "-auto-approve"]):
        done = terraform(place, *command)
        assert done is not None
        assert done.returncode == 0, done.stdout + done.stderr
    outputs = json.loads((place / "terraform.tfstate").read_text())["outputs"]
    return {HUB: outputs["hub"]["value"], CONTROLLER: outputs["controller"]["value"], **outputs["nodes"]["value"]}


def tree(role: str, packages: list[str]) -> list[Path]:
    """Return the folders of a machine with cloud-init and the packages of its user data, the uppermost first."""
    lower = layers(role, [])
    names = ("cloud-init", *packages)

    def fill(new: Path) -> None:
        with overlay(lower, new, CACHE / f"{BUILDING}-work", CACHE / f"{BUILDING}-root") as root:
            _inside(root, _install(names), "rm -f /var/cache/apt/archives/*.deb")

    return [kept(f"cloud-{role}", [[str(folder) for folder in lower], names], fill), *lower]


@contextmanager
def cloud_site(folder: Path, password_hash: str) -> Iterator[dict[str, Machine]]:
    """Boot the controller, a node and the hub, each until it has made itself; everything is gone afterwards.

    Args:
        folder: of files that are made on the way.
    """
    remove_all()
    machines.STATE.mkdir(parents=True)
    site: dict[str, Machine] = {}
    usual, machines.BOOT = machines.BOOT, FIRST_BOOT
    try:
        data = user_data(folder, password_hash)
        network = Network()
        network.up()
        binds = _binds(data)
        for name, role in ((CONTROLLER, "controller"), (NODE, "nodes"), (HUB, "hub")):
            packages = list(yaml.safe_load(data[name])["packages"])
            namespace, folders = network.join(name, ADDRESSES[name]), tree(role, packages)
            machine = Machine(role, name, namespace, folders, binds[role], OPTIONS)
            machine.make()
            _prepare(machine, data[name])
            site[name] = machine
            began = time.monotonic()
            say(f"{name} boots for the first time")
            machine.boot()
            say(f"{name} is up after {time.monotonic() - began:.0f} s")
            if role == "nodes":  # its cgroups can be written after the boot only, see Machine.boot
                machine.run("systemctl restart slurmd")
            said = machine.run("cat /var/log/cloud-init-output.log")
            assert " is ready" in said, (
                said[-6000:] + machine.try_run("journalctl -b -p warning --no-pager | tail -n 40").stdout
            )
        yield site
    finally:
        machines.BOOT = usual
        for machine in reversed(site.values()):
            machine.shut_down()
        remove_all()


def _binds(data: dict[str, str]) -> dict[str, dict[Path, str]]:
    """Make the exported folders and what the hub installs from, and return what each kind of machine binds."""
    folders = {name: machines.STATE / f"export{name.replace('/', '-')}" for name in EXPORTS}
    for folder in folders.values():
        folder.mkdir()
    ours, npm = machines.STATE / "wheel", machines.STATE / "npm"
    ours.mkdir()
    built = wheel(ours)
    hub = tree("hub", yaml.safe_load(data[HUB])["packages"])
    shutil.copytree(npm_packages(["-g configurable-http-proxy"], hub), npm)
    packages = {wheels(built): WHEELS, ours: OUR_WHEEL, npm: f"+{NPM}"}
    exported = {folder: f"+/exports{name}" for name, folder in folders.items()}
    return {
        "controller": {folder: f"+{name}" for name, folder in folders.items()},
        "nodes": exported,
        "hub": {**exported, **packages},
    }


def _prepare(machine: Machine, data: str) -> None:
    """Give a tree its user data, as a cloud does, and what is forged."""
    seed = machine.root / "var/lib/cloud/seed/nocloud"
    seed.mkdir(parents=True)
    (seed / "user-data").write_text(data)
    (seed / "meta-data").write_text(f"instance-id: {machine.name}\n")
    machine.write("/etc/cloud/cloud.cfg.d/99-test.cfg", DATA_SOURCE)
    machine.write("/etc/hosts", "127.0.0.1 localhost\n")
    machine.write("/usr/local/bin/mount", FORGED_MOUNT, 0o755)
    if machine.role == "controller":
        machine.write("/etc/systemd/system/nfs-server.service", FORGED_SERVER)
        machine.write("/usr/local/bin/exportfs", "#!/bin/sh\n", 0o755)
        # Debian's package makes the key; here the folder is bound over it.
        key = machine.root / "etc/munge/munge.key"
        place = machines.STATE / "export-etc-munge/munge.key"
        place.write_bytes(key.read_bytes() if key.exists() else b"0" * 1024)
        place.chmod(0o400)
        status = (machine.root / "etc/munge").stat()
        shutil.chown(place.parent, status.st_uid, status.st_gid)
        shutil.chown(place, status.st_uid, status.st_gid)
        place.parent.chmod(0o700)
    if machine.role == "hub":
        pip = f"[global]\nno-index = true\nfind-links = {OUR_WHEEL} {WHEELS}\ndisable-pip-version-check = true\n"
        machine.write("/etc/pip.conf", pip)
        registry = (machines.STATE / "npm/registry").read_text()
        npm = f"cache={NPM}\nregistry={registry}\noffline=true\naudit=false\nfund=false\nupdate-notifier=false\n"
        machine.write("/root/.npmrc", npm)


def wait_until_idle(site: dict[str, Machine]) -> None:
    """Wait until Slurm's node can run jobs."""
    controller = site[CONTROLLER]
    wait_for(
        lambda: controller.try_run("sinfo -h -N -o %T").stdout.split() == ["idle"],
        60,
        "the node to be idle",
        lambda: (
            controller.try_run("sinfo -N -l; sinfo -R; tail -n 20 /var/log/slurm/slurmctld.log").stdout
            + site[NODE].try_run("journalctl --no-pager -n 20 -u slurmd; tail -n 20 /var/log/slurm/slurmd.log").stdout
        ),
    )


def password_hash(password: str) -> str:
    """Return the hash of a password, as ``terraform.tfvars`` has it."""
    return run("openssl", "passwd", "-6", password).strip()
