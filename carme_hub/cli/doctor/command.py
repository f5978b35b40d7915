"""``carme-hub doctor``: print each unsafe setting of a hub and of its Slurm, and how to mend it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traitlets import Bool, List, TraitError, Unicode
from traitlets.config import Application, Config

from carme_hub.errors import CarmeError

from .findings import Finding, Level, unsafe

#: Exit statuses: something is unsafe; something could not be checked, and so is not known to be safe.
EXIT_UNSAFE, EXIT_UNKNOWN = 1, 3


class DoctorApp(Application):
    """Check a configuration file and the Slurm that it points to."""

    name = "carme-hub doctor"
    description = """Name each unsafe setting of a JupyterHub configuration and of the Slurm that it points to.

    Exits with 1 when something unsafe was found, with 3 when something could not be checked, with 0 otherwise. Run it
    as the hub's user, on the hub's machine. Nothing is changed."""

    config_path = Unicode(
        "jupyterhub_config.py", help="The hub's configuration file. The default is the one in the working folder."
    ).tag(config=True)
    as_json = Bool(False, help="Print one JSON object a line instead of text.").tag(config=True)
    no_slurm = Bool(False, help="Do not ask Slurm.").tag(config=True)
    accept = List(
        Unicode(),
        help="""Settings whose findings are known and accepted, by name: they are printed and do not count. The sandbox,
        whose GPUs are virtual, needs ``--accept TaskPlugin``.""",
    ).tag(config=True)

    aliases = {"config": "DoctorApp.config_path", "f": "DoctorApp.config_path", "accept": "DoctorApp.accept"}
    flags = {
        "json": ({"DoctorApp": {"as_json": True}}, "Print one JSON object a line."),
        "no-slurm": ({"DoctorApp": {"no_slurm": True}}, "Do not ask Slurm."),
    }

    def start(self) -> None:
        """Check, print, and exit with the status that the findings give."""
        self.exit(self.report(list(self.examine(Path(self.config_path)))))

    def examine(self, file: Path) -> Iterator[Finding]:
        """Yield the findings about this file and its Slurm."""
        # Here: importing JupyterHub takes a second, which --help need not wait for.
        from carme_hub.cli.hub_config import load_config

        from . import calendar, folders, hub, images, policy, slurm, staging

        try:
            config = load_config(file)
        except CarmeError as error:
            yield unsafe(str(file), "", str(error), "do what the message says; then run the doctor again")
            return
        yield from hub.check(config, file.resolve())
        yield from policy.check(config)
        yield from folders.check(config)
        yield from staging.check_machine(config)
        if self.no_slurm or not _uses_slurm(config):
            return
        try:
            folder, environ = hub.slurm_commands(config)
        except (TraitError, CarmeError):
            return  # reported already
        facts, licenses = slurm.read_facts(folder, environ), policy.licenses(config)
        yield from slurm.check(facts, policy.soft_qos(config), licenses)
        if facts.config is not None:  # else it is reported already that Slurm does not answer
            yield from images.check_prolog(config, facts.config)
            yield from calendar.check_site(config)
            yield from staging.check(config, facts.config)

    def report(self, findings: list[Finding]) -> int:
        """Print the findings, worst first, and return the exit status."""
        order = list(Level)
        accepted = set(self.accept)
        unsafe_count = unknown_count = 0
        for finding in sorted(findings, key=lambda found: order.index(found.level)):
            known = finding.setting in accepted
            unsafe_count += finding.level is Level.UNSAFE and not known
            unknown_count += finding.level is Level.UNKNOWN and not known
            print(json.dumps(finding.json(known)) if self.as_json else finding.text(known))
        if not self.as_json:
            count = {level: sum(f.level is level for f in findings) for level in order}
            summary = ", ".join(f"{count[level]} {level.value}" for level in order if count[level])
            print(f"{self.config_path}: {summary or 'nothing to mend'}", file=sys.stderr)
        return EXIT_UNSAFE if unsafe_count else EXIT_UNKNOWN if unknown_count else 0


def _uses_slurm(config: Config) -> bool:
    spawner: Any = config.JupyterHub.get("spawner_class", "")
    name = spawner if isinstance(spawner, str) else getattr(spawner, "__name__", "")
    return "slurm" in name.lower()
