"""Finds the facts of a site: Slurm by its commands, this machine by its files, nodes by one srun on each partition."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import pwd
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from carme_hub.cli.base import UsageError
from carme_hub.cli.doctor.images import PROGRAMS
from carme_hub.cli.doctor.slurm import parse
from carme_hub.containers.images import read_image
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import ContainerError, SlurmError, SlurmUnreachable
from carme_hub.slurm.cli import parse as slurm_answers
from carme_hub.slurm.command import Answer, Commands

from .checks import claimed
from .facts import Facts, jwt_key, partitions
from .plan import SEARCH_PATH
from .record import Record

#: Programs whose presence on this machine matters.
_PROGRAMS = ("nginx", "caddy", "systemctl", "visudo", "logrotate", "node", "configurable-http-proxy", *PROGRAMS)
#: Where the units find programs, whatever this shell's PATH has besides.
SEARCH = f"{Path(sys.executable).parent}:{SEARCH_PATH}"
#: Sources of users whose passwords are in /etc/shadow (nsswitch.conf(5)).
_LOCAL_SOURCES = frozenset({"files", "compat", "systemd", "db"})
_MOST_NODES = 64
PROBE_JOB = "carme-setup"
_MARK = "carme-setup:"
#: Seconds until a node has to be free, and until it has answered.
_PROBE_WAIT, _PROBE_LIMIT = 30, 90
#: Runs on a node, which has no software of ours, as the batch script of each session does.
_PROBE = f"""\
import json, shutil
programs = {{"bubblewrap": ["bwrap"], "charliecloud": ["ch-run"], "apptainer": ["apptainer", "singularity"],
            "enroot": ["enroot"], "podman": ["podman"]}}
found = [name for name, each in programs.items() if any(map(shutil.which, each))]
print({_MARK!r} + json.dumps(found))
"""


class _SystemUsers:
    def __contains__(self, name: object) -> bool:
        try:
            pwd.getpwnam(str(name))
        except KeyError:
            return False
        return True


class _SystemGroups:
    def __contains__(self, name: object) -> bool:
        try:
            grp.getgrnam(str(name))
        except KeyError:
            return False
        return True


class _SystemMembers:
    def __contains__(self, pair: object) -> bool:
        name, group = pair if isinstance(pair, tuple) else ("", "")
        try:
            return grp.getgrnam(group).gr_gid in os.getgrouplist(name, pwd.getpwnam(name).pw_gid)
        except KeyError:
            return False


async def find(commands: Commands, hub_user: str, *, look_up_users: bool = True) -> Facts:
    """Return what Slurm and this machine say.

    Args:
        hub_user: whose rights in Slurm are looked at.
        look_up_users: False where the files are for another machine, whose users are not here.

    Raises:
        UsageError: Slurm's commands are not here, or the controller does not answer.
    """
    config = parse((await _ask(commands, "scontrol", "show", "config")).out)
    text = (await _ask(commands, "scontrol", "show", "node", "--details", "--oneliner")).out
    lines = (await _ask(commands, "scontrol", "--all", "show", "partition", "--oneliner")).out
    try:
        nodes = slurm_answers.nodes(text)
        offered = partitions(lines, nodes)
    except (ValueError, SlurmError) as error:
        raise UsageError(f"Slurm's answer cannot be understood: {error}") from error
    _need(commands, "sbatch")  # the helper calls it by its path
    notes: list[str] = []
    accounts = await _listed(commands, notes, "account", "format=Account")
    qos = await _listed(commands, notes, "qos", "format=Name")
    level = await _listed(commands, notes, "user", "where", f"name={hub_user}", "format=AdminLevel")
    key = jwt_key(config)
    return Facts(
        cluster=config.get("ClusterName", ""),
        release=config.get("SLURM_VERSION", ""),
        partitions=offered,
        accounts=accounts and tuple(dict.fromkeys(accounts)),
        qos=qos,
        sbatch=commands.path("sbatch"),
        slurm_conf=_file_here(config.get("SLURM_CONF", "")),  # the controller's, which need not be here
        jwt_key=key,
        has_jwt_key=bool(_file_here(key)),
        sudo=shutil.which("sudo", path=SEARCH) or "",
        addresses=await asyncio.to_thread(_addresses, nodes),
        host=await asyncio.to_thread(socket.getfqdn),
        programs=frozenset(name for name in _PROGRAMS if shutil.which(name, path=SEARCH)),
        admin_level=None if level is None else "".join(level[:1]),
        hub_group=_group_of(hub_user),
        local_passwords=_local_passwords(),
        users=_SystemUsers() if look_up_users else None,
        groups=_SystemGroups() if look_up_users else None,
        members=_SystemMembers() if look_up_users else None,
        notes=tuple(notes),
    )


def of_this_shell() -> dict[str, str]:
    """Return the answers by which the hub asks the same Slurm as this shell, whose variables its unit has not."""
    found = {}
    here, unit = shutil.which("scontrol"), shutil.which("scontrol", path=SEARCH)
    if here and Path(here).parent.name == "bin" and not (unit and Path(unit).samefile(here)):
        found["slurm_prefix"] = str(Path(here).parent.parent)
    if conf := os.environ.get("SLURM_CONF"):
        found["slurm_conf"] = conf
    return found


async def look_at_nodes(commands: Commands, facts: Facts, names: Iterable[str], user: str) -> Facts:
    """Return the facts with the container runtimes of one node of each partition, found by a job of a minute.

    Args:
        user: whose jobs these are; "" or the same user without root's rights = one's own.
    """
    pyxis = await _has_pyxis(commands)
    found, notes = dict(facts.runtimes), list(facts.notes)
    for name in names:
        try:
            found[name] = frozenset(await _probe(commands, name, user)) | pyxis
        except SlurmError as error:
            notes.append(f"No node of the partition {name} could be looked at: {error}")
    return replace(facts, runtimes=found, notes=tuple(notes))


def beside(facts: Facts, others: Mapping[str, Record]) -> Facts:
    """Return the facts with ports and state folders of other hubs on this machine.

    Args:
        others: the records of the hubs, by their names.
    """
    ports = {
        number: f"{what} of the hub {name}"
        for name, record in others.items()
        for what, text in record.ports().items()
        for number in claimed(what, text)
    }
    folders = {
        record.answers.get("state_folder") or f"/var/lib/{name}": f"the state folder of the hub {name}"
        for name, record in others.items()
    }
    return replace(facts, ports=ports, folders=folders)


def with_image(facts: Facts, path: str) -> Facts:
    """Return the facts with what an image's own description says, where this machine has it."""
    try:
        image = read_image(Path(path))
    except ContainerError:
        return facts
    found: dict[str, object] = {"name": image.name, "base": image.base}
    if image.description:
        found["description"] = image.description
    if image.provides:
        found["provides"] = list(image.provides)
    if image.base == "own":
        del found["base"]
    return replace(facts, image=found)


def _need(commands: Commands, name: str) -> None:
    if shutil.which(commands.path(name)) is None:
        where = f"in {commands.prefix}/bin" if commands.prefix else "on the PATH"
        raise UsageError(
            f"There is no {name} {where}: Slurm's commands are needed on the hub's machine. Install them (Debian: "
            "apt install slurm-client, and slurm.conf or a configless controller), or name their folder: "
            "--slurm-prefix /opt/slurm"
        )


async def _ask(commands: Commands, name: str, *arguments: str) -> Answer:
    _need(commands, name)
    try:
        answer = await commands.query(name, *arguments)
    except SlurmUnreachable as error:
        raise UsageError(f"Slurm does not answer: {error}") from error
    if answer.code != 0 or answer.reports_error:
        raise UsageError(f"Slurm does not answer: {name}: {answer.message}")
    return answer


async def _listed(commands: Commands, notes: list[str], what: str, *words: str) -> tuple[str, ...] | None:
    """Return one column of a list of sacctmgr; None, and a note, where accounting does not answer."""
    try:
        answer = await commands.query("sacctmgr", "--readonly", "--noheader", "--parsable2", "show", what, *words)
        said = answer.message if answer.code != 0 or answer.reports_error else ""
    except SlurmUnreachable as error:
        answer, said = None, str(error)
    if answer is None or said:
        notes.append(f"Slurm's accounting did not list {what}s: {said}")
        return None
    return tuple(line.strip() for line in answer.out.splitlines() if line.strip())


async def _has_pyxis(commands: Commands) -> frozenset[str]:
    try:
        answer = await commands.query("srun", "--help")
    except SlurmUnreachable:
        return frozenset()
    return frozenset({"pyxis"} if "--container-image" in answer.out else ())


async def _probe(commands: Commands, partition: str, user: str) -> list[str]:
    who = user if os.geteuid() == 0 else ""
    argv = [commands.path("srun"), f"--partition={partition}", f"--job-name={PROBE_JOB}", "--nodes=1", "--ntasks=1"]
    argv += ["--time=1", "--mem=64", f"--immediate={_PROBE_WAIT}", "--chdir=/", "--quiet"]
    argv += ["/usr/bin/python3", "-I", "-c", _PROBE]
    try:
        answer = await commands.run(argv, user=who, timeout=_PROBE_LIMIT)
    except SlurmUnreachable:
        names = [f"--name={PROBE_JOB}", *([f"--user={who}"] if who else [])]
        await commands.query("scancel", *names)
        raise
    lines = [line for line in answer.out.splitlines() if line.startswith(_MARK)]
    if not lines:
        raise SlurmUnreachable(f"srun: {answer.message}")
    try:
        return [str(name) for name in json.loads(lines[-1].removeprefix(_MARK))]
    except (ValueError, TypeError) as error:
        raise SlurmUnreachable(f"srun: {lines[-1][:200]!r} is not understood") from error


def _addresses(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the addresses of this machine from which the kernel would reach the nodes. Nothing is sent."""
    found: Counter[str] = Counter()
    for host in list(dict.fromkeys(node.address for node in nodes))[:_MOST_NODES]:
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(where)
                found[str(probe.getsockname()[0])] += 1
        except OSError:
            continue
    return tuple(address for address, _ in found.most_common())


def _file_here(path: str) -> str:
    """Return the path where this machine has that file, "" elsewhere."""
    return path if path and Path(path).is_file() else ""


def _group_of(user: str) -> str:
    try:
        return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    except KeyError:
        return ""


def _local_passwords() -> bool:
    if "shadow" not in _SystemGroups():
        return False
    try:
        lines = Path("/etc/nsswitch.conf").read_text("utf-8", "replace").splitlines()
    except OSError:
        return True
    sources = next((line.partition(":")[2].split() for line in lines if line.startswith("passwd:")), ["files"])
    return set(sources) <= _LOCAL_SOURCES
