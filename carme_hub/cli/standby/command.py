"""``carme-hub standby``: the options, and what the supervisor needs to know of a configuration."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traitlets import Bool, default

from carme_hub import __version__
from carme_hub.cli.base import ConfiguredApp, UsageError
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.spawners.hub.service_watchdog import Watchdog
from carme_hub.store.engine import CarmeStore
from carme_hub.store.lease.lease import Lease, LeaseStore, require_postgresql

from .secrets import SharedSecrets
from .settings import CarmeStandby
from .supervisor import HubProcess, Supervisor
from .tenure import Times

#: Seconds for ``when_active`` and ``when_passive``.
_COMMAND_LIMIT = 10.0
_HELD = "a host has the lease: end `carme-hub standby` on both hosts first"


class StandbyApp(ConfiguredApp):
    """Run the hub on one of two hosts at a time."""

    name = "carme-hub standby"
    description = """Wait for the lease of the site's hub in PostgreSQL, run the hub while this host holds it, and end
    the hub before another host may have it. Run it on both hosts, in place of `jupyterhub`; words after -- are the
    hub's own command. It ends with the hub's exit status."""
    examples = """carme-hub standby --config /etc/carme-hub/jupyterhub_config.py
carme-hub standby -f jupyterhub_config.py -- jupyterhub --debug -f jupyterhub_config.py
carme-hub standby --status"""

    status = Bool(False, help="Print which host is active, and exit: 0 if one is, 1 if none.").tag(config=True)
    remove = Bool(False, help="Forget the lease: the site has one hub again, started by `jupyterhub`.").tag(config=True)
    new_secrets = Bool(
        False, help="Let the next hub have other secrets than the last one, while none is active; nothing is started."
    ).tag(config=True)
    first = Bool(False, help="Take the very first lease although others are connected to the database.").tag(
        config=True
    )

    classes = [CarmeStandby]

    @default("log_level")
    def _default_log_level(self) -> int:
        return logging.INFO

    @default("log_format")
    def _default_log_format(self) -> str:
        return "[%(levelname)1.1s %(asctime)s carme-hub standby] %(message)s"

    flags: Any = {
        **ConfiguredApp.flags,
        "status": ({"StandbyApp": {"status": True}}, "Print which host is active, and exit: 0 if one is, 1 if none."),
        "remove": ({"StandbyApp": {"remove": True}}, "Forget the lease: the site has one hub again."),
        "new-secrets": (
            {"StandbyApp": {"new_secrets": True}},
            "Let the next hub have other secrets than the last one, while none is active; nothing is started.",
        ),
        "first": (
            {"StandbyApp": {"first": True}},
            "Take the very first lease although others are connected to JupyterHub's database.",
        ),
    }

    async def work(self) -> int:
        """Do what the options say."""
        from carme_hub.cli.hub_config import hub_of  # here: importing JupyterHub takes a second

        config = self.configuration()
        hub, url, name = hub_of(config), CarmeStore(config=config).url, CarmeSlurm(config=config).cluster
        self._watchdog = Watchdog(os.environ)
        require_postgresql({"CarmeStore.url": url, "JupyterHub.db_url": hub.db_url})
        leases = LeaseStore(url, hub.db_url, name)
        try:
            if self.status:
                return self._status(leases)
            if self.remove:
                return self._remove(leases)
            if self.new_secrets:
                return self._forget_secrets(leases)
            await self._wait_for_unleased_hub(leases)
            return self._supervise(leases, hub)
        finally:
            leases.close()

    def _status(self, leases: LeaseStore) -> int:
        lease = leases.read()
        active = lease is not None and not lease.free
        if self.as_json:
            self.print_json(_document(lease))
        elif lease is None:
            print(f"{leases.name}: no host has ever had the lease")
        elif active:
            print(
                f"{leases.name}: the hub on {lease.host} is active since {_time(lease.since)}, token {lease.token}, "
                f"renewed {max(lease.age, 0):.0f} s ago, release {lease.release}"
            )
        else:
            print(f"{leases.name}: no host is active; the last was {lease.host}, token {lease.token}")
        return 0 if active else 1

    def _remove(self, leases: LeaseStore) -> int:
        if not leases.remove():
            raise UsageError(_HELD)
        print(f"{leases.name}: the lease is forgotten; start the one hub with `jupyterhub`")
        return 0

    def _forget_secrets(self, leases: LeaseStore) -> int:
        if not leases.forget_secrets():
            raise UsageError(_HELD)
        print(f"{leases.name}: the next host that takes the lease says which secrets both must have")
        return 0

    async def _wait_for_unleased_hub(self, leases: LeaseStore) -> None:
        """Wait until nobody is connected who may be a hub without lease; only before the very first lease."""
        said = ""
        while not self.first and leases.read() is None and (who := leases.unleased()):
            if who != said:
                self.log.warning(
                    "This would be the first lease, and JupyterHub's database is in use by %s. If that is a hub, stop "
                    "it; this waits. If it is not, --first begins at once.",
                    who,
                )
            said = who
            self._watchdog.tell_in_time()
            await asyncio.sleep(1)

    def _supervise(self, leases: LeaseStore, hub: Any) -> int:
        settings = CarmeStandby(parent=self, config=hub.config)
        argv = self.extra_args or [
            sys.executable,
            "-m",
            "jupyterhub",
            "--config",
            str(Path(self.config_path).resolve()),
        ]
        supervisor = Supervisor(
            leases,
            lambda ticket: HubProcess(argv, ticket),
            self.log,
            times=Times(settings.lease_seconds),
            secrets=SharedSecrets(hub).digest,
            release=__version__,
            on_active=lambda: self._call(settings.when_active),
            on_passive=lambda: self._call(settings.when_passive),
            on_tick=self._watchdog.tell_in_time,
            hang=settings.hang_seconds,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: supervisor.ended.set())
        return supervisor.run()

    def _call(self, argv: Sequence[str]) -> None:
        """Run a command of the site; its failure is logged."""
        if not argv:
            return
        try:
            done = subprocess.run(argv, timeout=_COMMAND_LIMIT, check=False, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            self.log.error("%s: %s", argv[0], error)
        else:
            if done.returncode:
                self.log.error("%s ended with %d", argv[0], done.returncode)


def _document(lease: Lease | None) -> dict[str, object]:
    if lease is None:
        return {"active": False, "host": "", "token": 0}
    about = {"since": lease.since, "age": round(lease.age, 3), "seconds": lease.seconds, "release": lease.release}
    return {"active": not lease.free, "host": lease.host, "token": lease.token, **about}


def _time(epoch: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(epoch))
