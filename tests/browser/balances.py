"""Set an account's balance to a known amount, whatever other tests wrote before."""

from __future__ import annotations

import sqlite3
import subprocess

from rig.hub import Hub


def set_balance(hub: Hub, account: str, amount: int, reason: str) -> None:
    """Grant or take GPU time until an account has ``amount`` left, in milli-GPU-seconds."""
    over = sum_of(hub, f"account = '{account}'") - amount
    if over > 0:
        quotas(hub, "correct", account, f"{over // 1000}s", "--take", "--reason", "The term is over")
    elif over < 0:
        quotas(hub, "grant", account, f"{-over // 1000}s", "--reason", reason)
    assert sum_of(hub, f"account = '{account}'") == amount


def quotas(hub: Hub, *words: str) -> str:
    """Run a command as the administrator of the hub's machine."""
    demo = hub.demo
    argv = ["runuser", "-u", demo.user, "--", f"{demo.environment}/bin/carme-hub", "quotas", *words]
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin", "CARME_SANDBOX_HUB": str(demo.folder / "facts.json")}
    done = subprocess.run(
        [*argv, "--config", str(demo.config_file)], env=environment, capture_output=True, text=True, cwd=demo.folder
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def sum_of(hub: Hub, where: str) -> int:
    """Return the sum of the ledger's entries, in milli-GPU-seconds, as the database has them."""
    database = sqlite3.connect(f"file:{hub.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)
    try:
        return int(database.execute(f"select coalesce(sum(amount), 0) from ledger where {where}").fetchone()[0])
    finally:
        database.close()
