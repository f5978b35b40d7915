"""Slurm's own books in the sandbox: accounts, associations, QOS with limits, and the hub's user as an Operator."""

from __future__ import annotations

import time
from collections.abc import Mapping

from carme_hub.errors import SandboxError
from carme_hub.sandbox.slurm.cluster import Cluster
from carme_hub.sandbox.slurm.settings import CLUSTER

#: QOS to its settings. "small" and "typed" are there so that limits can be seen to bite.
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

_NOTHING_NEW = ("Nothing new added", "already exists", "Already existing", "Nothing modified", "Nothing changed")


def write_books(cluster: Cluster, *, person: str | None = None) -> None:
    """Make accounts, QOS and associations, or see that they are there.

    Accounts and associations go in by one ``sacctmgr load``: one by one they take half a second each, and several at
    the same time were seen to lose some.

    Args:
        person: the one ordinary user of a rootless sandbox; None: the demo users.
    """
    for name, settings in QOS.items():
        _sacctmgr(cluster, "add", "qos", name, *settings, patience=15.0)
    if person:  # who is not in the books yet, may not load any
        here = f"Cluster={CLUSTER}"
        offered = (f"QOS={','.join(('normal', *QOS))}", "DefaultQOS=normal")
        _sacctmgr(cluster, "add", "account", ",".join(ACCOUNTS), here, *offered)
        _sacctmgr(cluster, "add", "user", person, f"Account={','.join(ACCOUNTS)}", here, "AdminLevel=Operator")
        return
    book = cluster.layout.etc / "books.cfg"
    book.write_text(books(cluster.hub_user, MEMBERS))
    _sacctmgr(cluster, "load", f"file={book}")


def books(hub_user: str, members: Mapping[str, tuple[str, ...]]) -> str:
    """Return accounts and associations in the language of ``sacctmgr load``."""
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


def _sacctmgr(cluster: Cluster, *words: str, patience: float = 0.0) -> None:
    end = time.monotonic() + patience
    while True:
        done = cluster.run("sacctmgr", "-i", "-Q", *words, check=False)
        said = done.stdout + done.stderr
        if done.returncode == 0 or any(sign in said for sign in _NOTHING_NEW):
            return
        if time.monotonic() > end:
            raise SandboxError(f"sacctmgr {' '.join(words)}: {said.strip()}")
        time.sleep(0.2)
