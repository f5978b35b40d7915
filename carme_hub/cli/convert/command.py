"""``carme-hub convert``: read an old configuration without running it, write ours, and list what has no counterpart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from traitlets import Unicode

from carme_hub.cli.base import ConfiguredApp, UsageError, positional_arguments
from carme_hub.errors import ConfigError

from .findings import Level

#: Exit status where a line needs a decision.
EXIT_LOOK = 1
_LARGEST = 4_000_000


class ConvertApp(ConfiguredApp):
    """Convert a configuration of batchspawner, jupyterhub_moss, ProfilesSpawner or Open OnDemand's Jupyter app."""

    name = "carme-hub convert"
    description = """Convert an old configuration: ``carme-hub convert FILE``.

    FILE is a jupyterhub_config.py for batchspawner, jupyterhub_moss or wrapspawner's ProfilesSpawner, or the folder
    (or form.yml) of an app of Open OnDemand. It is read and not run. The new configuration goes to stdout, or to a new
    file with ``--output``; an existing file is never overwritten. On stderr is a line for each setting: where it was,
    and whether it is kept, changed or dropped, or has to be looked at, with what to do.

    Exits with 1 when something has to be looked at, with 0 otherwise, with 2 when FILE cannot be read. Nothing else is
    written, and Slurm is not asked."""

    output = Unicode("", help="Write to this file, which must not exist. The default is stdout.").tag(config=True)
    state_folder = Unicode(
        "/var/lib/carme-hub",
        help="""The new hub's folder for databases, secrets and certificates. Files that the old configuration names
        stay where they are.""",
    ).tag(config=True)
    sinfo = Unicode(
        "",
        help="""A file with the answer of ``sinfo -a --noheader -o '%R|%c|%m|%l|%G'``: what jupyterhub_moss asks Slurm
        for. Without it, what the old file does not say becomes a small number and a TODO.""",
    ).tag(config=True)

    aliases: Any = {
        "output": "ConvertApp.output",
        "o": "ConvertApp.output",
        "state-folder": "ConvertApp.state_folder",
        "sinfo": "ConvertApp.sinfo",
    }
    flags: Any = {
        "json": (
            {"ConfiguredApp": {"as_json": True}},
            "Print one JSON document on stdout: the findings, and the new configuration as a text.",
        )
    }

    async def work(self) -> int:
        """Convert, write, and list the findings."""
        (name,) = positional_arguments(self, "FILE")
        if not Path(self.state_folder).is_absolute():
            raise UsageError("--state-folder must be an absolute path")
        site = self._converted(Path(name))
        from .writing import write

        text = write(site, self.state_folder)
        findings = sorted(site.findings, key=lambda finding: (finding.file, finding.line))
        if self.output:
            write_new(Path(self.output), text)
        if self.as_json:
            self.print_json({"findings": [finding.json() for finding in findings], "configuration": text})
        else:
            if not self.output:
                print(text, end="")
            for finding in findings:
                self.note(finding.text())
            count = {level: sum(finding.level is level for finding in findings) for level in Level}
            self.note(f"{name}: {', '.join(f'{count[level]} {level.value}' for level in Level)}")
        return EXIT_LOOK if any(finding.level is Level.LOOK for finding in findings) else 0

    def _converted(self, path: Path) -> Any:
        # Here: importing JupyterHub takes a second, which --help need not wait for.
        from .convert import convert_app, convert_config
        from .reading.ondemand_app import is_app

        if is_app(path):
            return convert_app(path)
        if path.is_dir():
            raise UsageError(f"{path} has no form.yml, so it is no app of Open OnDemand: name a jupyterhub_config.py")
        sinfo = _text_of(Path(self.sinfo)) if self.sinfo else ""
        return convert_config(_text_of(path), path.name, sinfo)


def _text_of(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    if path.stat().st_size > _LARGEST:
        raise ConfigError(f"{path} is too large for a configuration")
    return path.read_text("utf-8", "replace")


def write_new(path: Path, text: str) -> None:
    """Write a file that only its owner can read, because the old one may hold secrets; never over another.

    Raises:
        UsageError: it exists.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(f"{path} exists, and is not overwritten: name another file with --output") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
