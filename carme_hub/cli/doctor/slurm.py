"""Settings of Slurm that endanger sessions, accounts or secrets.

``read_facts`` asks Slurm; ``check`` is pure. ``carme-hub doctor`` calls both.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from carme_hub.domain.calendar.licenses import license_problems
from carme_hub.slurm.reservations import read_licenses

from .findings import Finding, advice, unknown, unsafe

#: Outages of munge, network or controller up to ten minutes must not end sessions.
SLURMD_TIMEOUT = 900
MIN_JOB_AGE = 120
ENFORCE = ("associations", "limits", "qos", "safe")
PRIVATE = ("jobs", "usage", "users", "accounts", "reservations")


@dataclass(frozen=True, slots=True)
class SlurmFacts:
    """What Slurm reports of itself; None where it did not answer.

    Attributes:
        config: ``scontrol show config``. dbd: the daemon's half of ``sacctmgr show configuration``.
        gres: the GRES of each node. qos: the names of all QOS. gpus: how many there are of each type.
        licenses: how many there are of each license. errors: why a command gave no answer, by the command.
    """

    config: Mapping[str, str] | None = None
    dbd: Mapping[str, str] | None = None
    gres: Sequence[str] | None = None
    qos: Sequence[str] | None = None
    gpus: Mapping[str, int] | None = None
    licenses: Mapping[str, int] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)


def read_facts(path: str, environ: Mapping[str, str], time_limit: float = 10.0) -> SlurmFacts:
    """Ask Slurm for what ``check`` needs.

    Args:
        path: folder of Slurm's commands, "" = PATH.
    """
    errors: dict[str, str] = {}

    def run_command(*argv: str) -> str | None:
        command = [f"{path}/{argv[0]}" if path else argv[0], *argv[1:]]
        try:
            done = subprocess.run(
                command,
                env=dict(environ),
                capture_output=True,
                timeout=time_limit,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            errors[argv[0]] = f"no answer within {time_limit:.0f} s"
        except OSError as error:
            errors[argv[0]] = error.strerror or str(error)
        else:
            text = done.stdout.decode("utf-8", "replace")
            if done.returncode == 0 and text.strip():
                return text
            text = " ".join(done.stderr.decode("utf-8", "replace").split())
            errors[argv[0]] = text[:200] or f"exit status {done.returncode}"
        return None

    config = run_command("scontrol", "show", "config")
    both = run_command("sacctmgr", "-n", "show", "configuration") if config is not None else None
    nodes = run_command("sinfo", "-h", "-N", "-o", "%N %G") if config is not None else None
    # A node is listed once for each of its partitions.
    gres = {node: text for node, _, text in (line.partition(" ") for line in (nodes or "").splitlines())}
    licenses = run_command("scontrol", "show", "licenses", "--oneliner") if config is not None else None
    qos = run_command("sacctmgr", "-n", "-P", "show", "qos", "format=Name") if both is not None else None
    _, found, dbd = (both or "").partition("SlurmDBD configuration")
    return SlurmFacts(
        config=parse(config) if config is not None else None,
        dbd=parse(dbd) if found else None,
        gres=tuple(sorted(set(gres.values()))) if nodes is not None else None,
        qos=tuple(qos.split()) if qos is not None else None,
        gpus=_gpus(gres.values()) if nodes is not None else None,
        licenses=read_licenses(licenses) if licenses is not None else None,
        errors=errors,
    )


def parse(text: str) -> dict[str, str]:
    """Return ``Name = value`` lines; Slurm's ``(null)`` is "". The first line of a name counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip():
            found.setdefault(name.strip(), "" if value.strip() == "(null)" else value.strip())
    return found


def check(
    facts: SlurmFacts, soft_qos: Sequence[str] = (), licenses: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Finding]:
    """Yield the unsafe settings among these facts.

    Args:
        soft_qos: the QOS that the policy gives sessions over a soft limit.
        licenses: the license by which the calendar counts each GPU type.
    """
    if facts.config is None:
        text = facts.errors.get("scontrol", "not asked")
        yield unknown("slurm.conf", f"scontrol gave no answer: {text}", "run the doctor where Slurm answers")
        return
    yield from _sessions(facts.config)
    yield from _limits(facts.config, facts.gres)
    yield from _secrets(facts.config)
    yield from _accounting(facts)
    yield from _soft_limits(facts, soft_qos)
    yield from _licenses(facts, licenses)


def _sessions(config: Mapping[str, str]) -> Iterator[Finding]:
    timeout = _number(config.get("SlurmdTimeout", ""))
    if timeout is not None and 0 < timeout < SLURMD_TIMEOUT:  # 0: nodes are never given up
        yield unsafe(
            "SlurmdTimeout",
            f"{timeout} s",
            "Slurm gives up a node that is unreachable for longer (network, munge), and its sessions with it",
            f"SlurmdTimeout={SLURMD_TIMEOUT} in slurm.conf",
        )
    age = _number(config.get("MinJobAge", ""))
    if age is not None and age < MIN_JOB_AGE:
        yield unsafe(
            "MinJobAge",
            f"{age} s",
            "the controller forgets ended jobs before their end is certain, so the state of sessions stays unknown",
            "MinJobAge=300 in slurm.conf",
        )
    if config.get("JobRequeue") == "1":
        yield advice(
            "JobRequeue",
            "1",
            "a session started again elsewhere has lost its kernels; ours are submitted with --no-requeue, others not",
            "JobRequeue=0 in slurm.conf",
        )
    if "pgid" in config.get("ProctrackType", ""):
        yield unsafe(
            "ProctrackType",
            config["ProctrackType"],
            "processes that leave their process group outlive the job",
            "ProctrackType=proctrack/cgroup in slurm.conf",
        )


def _limits(config: Mapping[str, str], gres: Sequence[str] | None) -> Iterator[Finding]:
    enforce = set(_list_of(config.get("AccountingStorageEnforce", "")))
    missing = [word for word in ENFORCE if word not in enforce and "all" not in enforce]
    if missing:
        yield unsafe(
            "AccountingStorageEnforce",
            config.get("AccountingStorageEnforce", "") or "none",
            f"Slurm does not enforce {', '.join(missing)}: the second fence behind the hub's own checks is open",
            f"AccountingStorageEnforce={','.join(ENFORCE)} in slurm.conf",
        )
    if gres is None:
        yield unknown("Gres", "sinfo gave no answer, so GPUs were not looked at", "run the doctor where Slurm answers")
        return
    gpus = [part.split(":") for line in gres for part in _split(line) if part.split(":")[0] == "gpu"]
    if not gpus:
        return
    typed = {part[1] for part in gpus if len(part) > 1 and not part[1].isdigit()}
    untyped = {":".join(part) for part in gpus if len(part) == 1 or part[1].isdigit()}
    if untyped:
        yield unsafe(
            "Gres",
            ", ".join(sorted(untyped)),
            "GPUs without a type: profiles ask by type, and limits on a type do not see them",
            "give each GPU a type in gres.conf and slurm.conf, such as Gres=gpu:a100:4",
        )
    if "lua" not in config.get("JobSubmitPlugins", ""):
        yield unsafe(
            "JobSubmitPlugins",
            config.get("JobSubmitPlugins", "") or "none",
            "a job that asks for GPUs without a type (--gres=gpu:2) passes every limit on a type",
            "JobSubmitPlugins=lua in slurm.conf, with the job_submit.lua of share/carme_hub/slurm",
        )
    tracked = set(_list_of(config.get("AccountingStorageTRES", "")))
    shards = {"gres/shard"} if any(part.startswith("shard") for line in gres for part in _split(line)) else set()
    untracked = {"gres/gpu", *(f"gres/gpu:{name}" for name in typed), *shards} - tracked
    if untracked:
        names = ",".join(sorted(untracked))
        yield unsafe(
            "AccountingStorageTRES",
            config.get("AccountingStorageTRES", ""),
            f"Slurm can neither limit nor charge what it does not track: {names}",
            f"add {names} to AccountingStorageTRES in slurm.conf",
        )
    if "task/cgroup" not in config.get("TaskPlugin", ""):
        yield unsafe(
            "TaskPlugin",
            config.get("TaskPlugin", "") or "none",
            "a job can use GPUs of the node that were not given to it",
            "TaskPlugin=task/cgroup,task/affinity in slurm.conf and ConstrainDevices=yes in cgroup.conf",
        )
    elif config.get("ConstrainDevices", "").lower() == "no":
        yield unsafe(
            "ConstrainDevices",
            "no",
            "a job can use GPUs of the node that were not given to it",
            "ConstrainDevices=yes in cgroup.conf",
        )


def _secrets(config: Mapping[str, str]) -> Iterator[Finding]:
    flags = set(_list_of(config.get("AccountingStoreFlags", "")))
    for flag in sorted(flags & {"job_env", "job_script"}):
        yield unsafe(
            "AccountingStoreFlags",
            flag,
            "the database keeps the environment or script of each job, including the data of sessions",
            f"take {flag} out of AccountingStoreFlags in slurm.conf",
        )
    alternatives = config.get("AuthAltTypes", "")
    if "jwt" in alternatives and config.get("DisableRootJobs", "").lower() != "yes":
        yield unsafe(
            "DisableRootJobs",
            config.get("DisableRootJobs", "no"),
            "a token for root runs jobs as root on every node",
            "DisableRootJobs=YES in slurm.conf",
        )
    if "jwt" in alternatives and "disable_token_creation" not in config.get("AuthAltParameters", ""):
        yield advice(
            "AuthAltParameters",
            "without disable_token_creation",
            "every user can make tokens of any lifetime for themselves",
            "AuthAltParameters=jwt_key=…,disable_token_creation in slurm.conf",
        )
    keys = {"munge's key": "/etc/munge/munge.key", "Slurm's own key": "/etc/slurm/slurm.key"}
    if match := re.search(r"jwt_key=([^,\s]+)", config.get("AuthAltParameters", "")):
        keys["the key of Slurm's tokens"] = match[1]
    for what, key in keys.items():
        yield from _key(what, Path(key))


def _key(what: str, key: Path) -> Iterator[Finding]:
    try:
        mode = key.stat().st_mode
    except OSError:
        return
    if mode & 0o077:
        why, mend = f"{what} can be read by others: its holder can act as any user, root included", f"chmod 600 {key}"
    elif os.geteuid() != 0 and os.access(key, os.R_OK):
        why = f"the hub's user can read {what}: whoever breaks into the hub controls the whole cluster"
        mend = f"chown root {key}, and let the token helper hand out short-lived tokens"
    else:
        return
    yield unsafe(str(key), f"mode {mode & 0o777:04o}", why, mend)


def _accounting(facts: SlurmFacts) -> Iterator[Finding]:
    config = facts.config or {}
    if "slurmdbd" not in config.get("AccountingStorageType", ""):
        yield unsafe(
            "AccountingStorageType",
            config.get("AccountingStorageType", "") or "none",
            "without slurmdbd there are no accounts, no limits, and no proof of how a job ended",
            "AccountingStorageType=accounting_storage/slurmdbd in slurm.conf",
        )
        return
    yield from _private("slurm.conf", config)
    if facts.dbd is None:
        text = facts.errors.get("sacctmgr", "it does not show slurmdbd's settings")
        yield unknown("slurmdbd.conf", f"sacctmgr gave no answer: {text}", "run the doctor while slurmdbd answers")
    else:
        yield from _private("slurmdbd.conf", facts.dbd)


def _soft_limits(facts: SlurmFacts, soft_qos: Sequence[str]) -> Iterator[Finding]:
    if soft_qos and facts.qos is None:
        yield unknown("soft_qos", "sacctmgr named no QOS", "run the doctor while slurmdbd answers")
        return
    for name in soft_qos:
        if name not in (facts.qos or ()):
            yield unsafe(
                "soft_qos",
                name,
                "Slurm has no such QOS: it refuses every session over that soft limit (Invalid qos)",
                f"sacctmgr add qos {name} Priority=…, then carme-hub quotas mirror --apply, which lets accounts use it",
            )


def _licenses(facts: SlurmFacts, licenses: Mapping[str, str]) -> Iterator[Finding]:
    if not licenses:
        return
    setting = "CarmeReservations.licenses"
    if facts.licenses is None or facts.gpus is None:
        text = facts.errors.get("scontrol", facts.errors.get("sinfo", "not asked"))
        yield unknown(setting, f"Slurm named no licenses: {text}", "run the doctor where Slurm answers")
        return
    wanted = ",".join(f"{name}:{facts.gpus.get(type, 0)}" for type, name in sorted(licenses.items()))
    for why in license_problems(licenses, facts.licenses, facts.gpus):
        yield unsafe(setting, ", ".join(licenses.values()), why, f"Licenses={wanted} in slurm.conf")
    if left := sorted(facts.gpus.keys() - licenses.keys()):
        yield advice(
            setting,
            ", ".join(licenses),
            f"GPUs that have no license cannot be booked: {', '.join(left)}",
            "name one for each type that people may book",
        )


def _gpus(gres: Iterable[str]) -> Counter[str]:
    found = Counter[str]()
    for part in (part.split(":") for text in gres for part in _split(text)):
        if part[0] == "gpu" and len(part) > 2 and part[-1].isdigit():
            found[":".join(part[1:-1])] += int(part[-1])
    return found


def _private(file: str, config: Mapping[str, str]) -> Iterator[Finding]:
    private = set(_list_of(config.get("PrivateData", "")))
    missing = [word for word in PRIVATE if word not in private and "all" not in private]
    if missing:
        yield unsafe(
            f"PrivateData in {file}",
            config.get("PrivateData", "") or "none",
            f"every user sees everybody's {', '.join(missing)}",
            f"PrivateData={','.join(PRIVATE)} in {file}; the hub's own Slurm user then needs AdminLevel=Operator",
        )


def _list_of(value: str) -> list[str]:
    return [] if value.lower() in ("", "none", "(null)") else [word.strip().lower() for word in value.split(",")]


def _split(gres: str) -> list[str]:
    """Split a GRES list at commas outside of parentheses, without the parentheses."""
    return [part for part in re.sub(r"\([^)]*\)", "", gres).split(",") if part]


def _number(value: str) -> int | None:
    match = re.match(r"\d+", value)
    return int(match[0]) if match else None
