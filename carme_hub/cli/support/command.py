"""``carme-hub support-bundle``: what somebody else needs to help, in one file without secrets."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traitlets import Bool, List, Unicode

from carme_hub import __version__
from carme_hub.cli.base import ConfiguredApp, table
from carme_hub.cli.explain.subject import Subject, subject_of
from carme_hub.domain.support.pseudonyms import Pseudonyms, names_in

from .archive import check_folder, free_name, write_archive, write_private
from .parts import Packed, Part, pack

#: Units of the hub and its proxy, where none are named (docs/howto/real-site.md).
UNITS = ("carme-hub.service", "carme-hub-proxy.service")


class SupportBundleApp(ConfiguredApp):
    """Pack what somebody else needs to help."""

    name = "carme-hub support-bundle"
    description = """Pack what somebody else needs to help into one file (tar.gz, mode 0600): versions, the doctor's
    findings, settings, ends of logs, the database's schema and number of rows, Slurm's settings and the queue in
    numbers, units of systemd, metrics, and the stories of the sessions that you name (as carme-hub explain).

    Secrets are taken out: passwords, tokens, keys, cookies, nonces, values of variables. Free text has no form, so read
    the files before you give them to anybody. --dry-run lists what would be packed. Run it as the hub's user, on the
    hub's machine. Nothing is changed. Exit status: 0 packed, 2 it was not; parts that could not be made are named, and
    are no error."""
    examples = """carme-hub support-bundle --dry-run
carme-hub support-bundle 4711 alice/train --unit carme-hub --pseudonyms --to ~/"""

    to = Unicode("", help="The folder in which it is written, one of yours. The default is the working folder.").tag(
        config=True
    )
    log_files = List(Unicode(), help="A log file whose end is packed; may be given several times.").tag(config=True)
    units = List(
        Unicode(), help="A unit of systemd; may be given several times. The default is the hub's and the proxy's."
    ).tag(config=True)
    token_file = Unicode(
        "",
        help="""File (mode 0600) with a token that has the scope read:metrics, for the hub's metrics. The default is the
        environment's JUPYTERHUB_API_TOKEN.""",
    ).tag(config=True)
    pseudonyms = Bool(False, help="Put other names in place of users'.").tag(config=True)
    dry_run = Bool(False, help="List what would be packed, and pack nothing.").tag(config=True)

    aliases: Any = {
        **ConfiguredApp.aliases,
        "to": "SupportBundleApp.to",
        "log": "SupportBundleApp.log_files",
        "unit": "SupportBundleApp.units",
        "token-file": "SupportBundleApp.token_file",
    }
    flags: Any = {
        **ConfiguredApp.flags,
        "pseudonyms": (
            {"SupportBundleApp": {"pseudonyms": True}},
            "Put other names in place of users'; who is who is written beside the bundle, for you alone.",
        ),
        "dry-run": ({"SupportBundleApp": {"dry_run": True}}, "List what would be packed, and pack nothing."),
    }

    async def work(self) -> int:
        """Make every part, take secrets out of it, and write the bundle."""
        # Here: they bring JupyterHub, and --help need not wait.
        from carme_hub.cli.explain.reader import Logs

        from . import known, machine, site, slurm

        subjects = [subject_of(word) for word in self.extra_args]
        folder = self._folder()
        if not self.dry_run:
            check_folder(folder)
        config = self.configuration()
        token = self._token()
        redactor = known.redactor_of([*known.site_secrets(config), token])
        settings = known.slurm_settings(config)
        units = [*(self.units or (UNITS if machine.BOOTED.is_dir() else ()))]
        files = [*self.log_files, *known.audit_files(config)]
        logs = Logs(self.log_files, self.units)
        parts = [
            *machine.machine_parts(settings.commands(), units, files),
            *site.site_parts(config, Path(self.config_path), redactor, token),
            *slurm.slurm_parts(settings),
            *site.session_parts(config, subjects, logs),
        ]
        if self.dry_run:
            return self._list(parts)
        redactor = redactor.with_known(await known.secrets_of_sessions(config, subjects))
        packed = await self.with_progress("asking the hub, the database and Slurm", pack(parts, redactor))
        now = time.time()
        file = free_name(folder, f"carme-hub-support-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}", ".tar.gz")
        unread: dict[str, str] = {}
        people: Pseudonyms | None = None
        if self.pseudonyms:
            names, unread = await known.names_of_users(config)
            people = Pseudonyms(names | {name for text in packed.files.values() for name in names_in(text)}, _random)
            packed = packed.renamed(people.text)
        sources = {people.text(part.name) if people else part.name: part.source for part in parts}
        text = _readme(sources, packed, subjects, unread, pseudonyms=self.pseudonyms)
        write_archive(file, {**packed.files, "README.txt": people.text(text) if people else text}, now)
        beside = None
        if people is not None:
            lines = "".join(f"{word} {name}\n" for word, name in sorted(people.who_is_who.items()))
            beside = write_private(file.with_name(f"{file.name}.names"), lines)
        self._report(file, packed, beside, unread)
        return 0

    def _folder(self) -> Path:
        return Path(self.to).expanduser() if self.to else Path.cwd()

    def _token(self) -> str:
        if not self.token_file:
            return os.environ.get("JUPYTERHUB_API_TOKEN", "").strip()
        from carme_hub.auth.secret_files import read_secret

        return read_secret(Path(self.token_file).expanduser(), "--token-file")

    def _list(self, parts: Sequence[Part]) -> int:
        if self.as_json:
            self.print_json([{"name": part.name, "source": part.source} for part in parts])
        else:
            print(table(("file", "source"), [(part.name, part.source) for part in parts]))
            self.note(f"{len(parts)} files would be packed; nothing was asked or written.")
        return 0

    def _report(self, file: Path, packed: Packed, beside: Path | None, unread: dict[str, str]) -> None:
        size = file.stat().st_size
        if self.as_json:
            values = {"file": str(file), "bytes": size, "files": sorted(packed.files), "not_packed": packed.missing}
            self.print_json({**values, "names": str(beside) if beside else None, "names_not_read": unread})
            return
        print(file)
        for name, why in packed.missing.items():
            self.note(f"not packed: {name}: {why}")
        for source, why in unread.items():
            self.note(f"names of users were not read from {source} ({why}): some may be left")
        if beside is not None:
            self.note(f"who is who: {beside}; keep it to yourself")
        self.note(f"{len(packed.files)} files, {size >> 10} KiB. Read them before you give them to anybody.")


def _random() -> str:
    return secrets.token_hex(3)


def _readme(
    sources: dict[str, str], packed: Packed, subjects: Sequence[Subject], unread: dict[str, str], *, pseudonyms: bool
) -> str:
    """Return the page that says what is in a bundle, and what is not; ``sources``: of its files, by their names."""
    lines = [
        f"Support bundle of Carme Hub {__version__}, made {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}.",
        "",
        "Secrets were taken out where they are known, and where their form or the name before them says what they are:",
        "[removed] stands in their place. Names of users "
        + ("were replaced by others, the same in all files." if pseudonyms else "are as they are."),
        "",
        "Packed:",
        *(f"  {name}: {sources.get(name, '')}" for name in sorted(packed.files)),
    ]
    if packed.missing:
        lines += ["", "Not packed, because it could not be made:"]
        lines += [f"  {name}: {why}" for name, why in sorted(packed.missing.items())]
    if unread:
        lines += ["", "Names of users were not read from: " + ", ".join(sorted(unread)) + "; some may be left."]
    if subjects:
        lines += ["", f"Stories of {len(subjects)} sessions are in sessions/."]
    return "\n".join(lines) + "\n"
