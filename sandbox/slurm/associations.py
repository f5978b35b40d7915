"""Slurm's accounting in the sandbox: accounts, associations, QOS with limits, and the hub's user as an Operator."""

from __future__ import annotations

import time
from collections.abc import Mapping

from carme_hub.errors import SandboxError
from carme_hub.sandbox.slurm.cluster import Cluster
from carme_hub.sandbox.slurm.settings import CLUSTER

#: QOS to its settings. "small" and "typed" exist so that tests and users can reach a limit.
QOS = {
    "short": ("MaxWall=00:30:00", "Priority=100"),
    "small": ("MaxTRESPerUser=gres/gpu=2", "Flags=DenyOnLimit"),
    "typed": ("MaxTRESPerUser=gres/gpu:a100=2", "Flags=DenyOnLimit"),
}

#: Demo user to accounts; the first is the default.
MEMBERS = {
    "alice": ("physics", "teaching"),
    "bob": ("physics",),
    "tina": ("teaching",),
    "ada": ("physics", "teaching"),
}
ACCOUNTS = ("physics", "teaching")
COORDINATORS = {"teaching": "tina"}

_UNCHANGED = ("Nothing new added", "already exists", "Already existing", "Nothing modified", "Nothing changed")


def write_associations(cluster: Cluster, *, user_name: str | None = None) -> None:
    """Create accounts, QOS and associations where they are missing.

    One ``sacctmgr load`` writes all accounts and associations: one by one they take half a second each, and concurrent
    writes were seen to lose some.

    Args:
        user_name: the one ordinary user of a rootless sandbox; None: the demo users.
    """
    for name, settings in QOS.items():
        _sacctmgr(cluster, "add", "qos", name, *settings, timeout=15.0)
    if user_name:  # a user without an association may not use sacctmgr load
        cluster_option = f"Cluster={CLUSTER}"
        offered = (f"QOS={','.join(('normal', *QOS))}", "DefaultQOS=normal")
        _sacctmgr(cluster, "add", "account", ",".join(ACCOUNTS), cluster_option, *offered)
        _sacctmgr(
            cluster, "add", "user", user_name, f"Account={','.join(ACCOUNTS)}", cluster_option, "AdminLevel=Operator"
        )
        return
    file = cluster.layout.etc / "books.cfg"
    file.write_text(associations_file(cluster.hub_user, MEMBERS))
    _sacctmgr(cluster, "load", f"file={file}")


def associations_file(hub_user: str, members: Mapping[str, tuple[str, ...]]) -> str:
    """Return accounts and associations in the format of ``sacctmgr load``."""
    qos = f"QOS='{','.join(('normal', *QOS))}':DefaultQOS='normal'"
    lines = [f"Cluster - '{CLUSTER}':Fairshare=1:QOS='normal'", "Parent - 'root'"]
    lines.append("User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1")
    lines.append(f"User - '{hub_user}':DefaultAccount='root':AdminLevel='Operator':Fairshare=1")
    for name in ACCOUNTS:
        lines.append(f"Account - '{name}':Description='{name}':Organization='{name}':Fairshare=1:{qos}")
    for name in ACCOUNTS:
        lines.append(f"Parent - '{name}'")
        for user, accounts in members.items():
            if name in accounts:
                extra = f"Coordinator='{name}':" if COORDINATORS.get(name) == user else ""
                lines.append(f"User - '{user}':{extra}DefaultAccount='{accounts[0]}':Fairshare=1")
    return "\n".join(lines) + "\n"


def _sacctmgr(cluster: Cluster, *words: str, timeout: float = 0.0) -> None:
    end = time.monotonic() + timeout
    while True:
        done = cluster.run("sacctmgr", "-i", "-Q", *words, check=False)
        output = done.stdout + done.stderr
        if done.returncode == 0 or any(sign in output for sign in _UNCHANGED):
            return
        if time.monotonic() > end:
            raise SandboxError(f"sacctmgr {' '.join(words)}: {output.strip()}")
        time.sleep(0.2)
