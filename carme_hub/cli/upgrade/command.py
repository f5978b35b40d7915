"""``carme-hub upgrade --check``: the options, and the report."""

from __future__ import annotations

import contextlib
from typing import Any

from traitlets import Bool, Unicode
from traitlets.config import Config

from carme_hub import __version__
from carme_hub.cli.base import ConfiguredApp, UsageError
from carme_hub.errors import StoreError
from carme_hub.store.engine import CarmeStore
from carme_hub.store.upgrade_steps import schema

from . import checks
from .checks import Finding, Need
from .releases import Release, earlier_releases, release_of_schema

#: Exit statuses: something is to be done; something is not known.
EXIT_ACT, EXIT_UNKNOWN = 1, 3


class UpgradeCheckApp(ConfiguredApp):
    """Say what an upgrade to this release means for a site."""

    name = "carme-hub upgrade"
    description = """Say what changes for this site with this release: settings, databases, helpers, running sessions,
    Slurm. Install the release into a folder of its own and run it from there, as the hub's user, while the old hub is
    up: nothing is changed. Exits with 0 where nothing is to be done, 1 where something is, 3 where something is not
    known."""
    examples = "/opt/carme-hub-new/bin/carme-hub upgrade --check --config /etc/carme-hub/jupyterhub_config.py"

    check = Bool(False, help="Only say what changes. It is the only thing that this command does.").tag(config=True)
    from_release = Unicode("", help="The release that runs now. The default is found out by the database.").tag(
        config=True
    )

    aliases = {**ConfiguredApp.aliases, "from": "UpgradeCheckApp.from_release"}
    flags: Any = {
        **ConfiguredApp.flags,
        "check": (
            {"UpgradeCheckApp": {"check": True}},
            "Only say what changes. It is the only thing that this command does.",
        ),
    }

    async def work(self) -> int:
        """Check, and print the findings."""
        if not self.check:
            raise UsageError("add --check; the upgrade itself is a few commands, in docs/howto/upgrade.md")
        from carme_hub.cli.hub_config import hub_of  # here: importing JupyterHub takes a second

        config = self.configuration()
        before = self._before(config)
        findings = [
            *checks.settings(config, _classes(), before),
            *checks.databases(config, hub_of(config)),
            *checks.helpers(config),
            *checks.sessions(config),
            *await checks.slurm(config),
        ]
        return self._report(findings, before)

    def _before(self, config: Config) -> Release | None:
        """Return the release that runs now, None for one that is not known, or has the schema of this one."""
        if not self.from_release:
            try:
                have = schema(CarmeStore(config=config).url)
            except StoreError:  # the findings say so
                return None
            return release_of_schema(have.have) if have.steps else None
        found = {each.release: each for each in earlier_releases()}
        if self.from_release not in found:
            raise UsageError(f"--from {self.from_release}: known are {', '.join(found)}")
        return found[self.from_release]

    def _report(self, findings: list[Finding], before: Release | None) -> int:
        needs = {finding.need for finding in findings}
        if self.as_json:
            about = {"from": before.release if before else "", "to": __version__}
            self.print_json({**about, "findings": [finding.json() for finding in findings]})
        else:
            print(f"from {before.release if before else 'what runs now'} to {__version__}")
            for finding in sorted(findings, key=lambda each: list(Need).index(each.need)):
                print(finding.line())
        return EXIT_ACT if Need.ACT in needs else EXIT_UNKNOWN if Need.UNKNOWN in needs else 0


def _classes() -> dict[str, Any]:
    """Return our classes that a configuration file sets, by name."""
    from carme_hub.accounting.settings import CarmeMirror, CarmeQuotas
    from carme_hub.activity.settings import CarmeActivity
    from carme_hub.administration.settings import CarmeStatus
    from carme_hub.auth.authenticator import CarmeAuthenticator
    from carme_hub.booking.settings import CarmeReservations
    from carme_hub.cli.standby.settings import CarmeStandby
    from carme_hub.folders.settings import CarmeFolders
    from carme_hub.images.settings import CarmeImages
    from carme_hub.slurm.settings import CarmeSlurm
    from carme_hub.spawners.apps.settings import CarmeApps
    from carme_hub.spawners.slurm.spawner import SlurmContainerSpawner
    from carme_hub.spawners.staging.settings import CarmeStaging

    ours: list[Any] = [SlurmContainerSpawner, CarmeApps, CarmeAuthenticator, CarmeSlurm, CarmeQuotas, CarmeMirror]
    ours += [CarmeReservations, CarmeActivity, CarmeStatus, CarmeStore, CarmeStandby]
    ours += [CarmeFolders, CarmeImages, CarmeStaging]
    with contextlib.suppress(ModuleNotFoundError):  # a site with Slurm need not have the extra `docker`
        from carme_hub.spawners.docker.spawner import CarmeDockerSpawner

        ours.append(CarmeDockerSpawner)
    return {cls.__name__: cls for cls in ours}
