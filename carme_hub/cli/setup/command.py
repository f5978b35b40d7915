"""``carme-hub setup``: find out, ask, show, write; then the doctor and test sessions; and all of it away again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from traitlets import Bool, Unicode

from carme_hub.cli.base import YES_FLAG, ConfiguredApp, UsageError, can_ask, says_yes
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.errors import ConfigError
from carme_hub.paths import share_folder
from carme_hub.slurm.command import Commands

from . import checks
from .answers import Answers, AnswersWrong, complete, from_document, typed
from .disk import Change, Disk, State
from .facts import Facts
from .find import SEARCH, beside, find, look_at_nodes, of_this_shell, with_image
from .plan import Sources, config_file, offered, site_files, timer, units
from .questions import BEFORE_NODES, BEFORE_SLURM, QUESTIONS, STAY, TEXTS, Question
from .report import found_text, left_to_do, links_text, sessions_table
from .services import Units, check_state_folder, make_state_folder, missing_programs, runs_systemd, wait_until_ready
from .trial import AsHub, try_each

#: Seconds for one answer of Slurm.
_SLURM_LIMIT = 20.0


def _answer(name: str) -> Any:
    return Unicode("", help=TEXTS[name]).tag(config=True)


class SetupApp(ConfiguredApp):
    """Write the files of a site, and try it."""

    name = "carme-hub setup"
    description = """Write what a site needs: the hub's configuration, systemd's units for hub and proxy, sudo's rules
    and the helpers with their settings, the rotation of the audit log, and files to include for nginx or Caddy and for
    Prometheus. It finds out what Slurm and this machine say, asks the rest, and shows everything as a diff before it
    writes. Then it starts the hub, runs the doctor, and starts one session on each partition.

    Run again it does nothing, or what has become different. A file that a person has changed since is shown, and
    written only when that is confirmed, or with --force. Run it as root. Exit status: 0 done, or nothing to do; 1 not
    confirmed, or the doctor or a session found something; 2 it cannot be done so."""
    examples = "carme-hub setup --answers site.yaml --yes"

    answers = Unicode("", help="File of answers: YAML, one a line, by the names of the options.").tag(config=True)
    root = Unicode("/", help="Write below this folder, for packages and tests; nothing is started then.").tag(
        config=True
    )
    no_input = Bool(False, help="Ask nothing: fail with the list of what is missing.").tag(config=True)
    ask_again = Bool(False, help="Ask all questions again; what was answered before is proposed.").tag(config=True)
    force = Bool(False, help="Also write files that a person has changed; theirs are kept, with ~ at the end.").tag(
        config=True
    )
    remove = Bool(False, help="Remove what setup wrote and nobody has changed since; never data. Shows it first.").tag(
        config=True
    )
    test = Bool(False, help="Run the doctor and the test sessions also where nothing was to do.").tag(config=True)
    no_test = Bool(False, help="Leave out the doctor and the test sessions.").tag(config=True)

    site, hub_user, state_folder, libexec = map(_answer, ("site", "hub_user", "state_folder", "libexec"))
    slurm_prefix, slurm_conf, cluster = map(_answer, ("slurm_prefix", "slurm_conf", "cluster"))
    host, web_server, tls_certificate, tls_key = map(_answer, ("host", "web_server", "tls_certificate", "tls_key"))
    hub_address, hub_port, public_port = map(_answer, ("hub_address", "hub_port", "public_port"))
    proxy_api_port, group, admin_group = map(_answer, ("proxy_api_port", "group", "admin_group"))
    services_port, folders_port, folders = map(_answer, ("services_port", "folders_port", "folders"))
    images_port, image_store, node_images = map(_answer, ("images_port", "image_store", "node_images"))
    submit_via, rest_url, partitions = map(_answer, ("submit_via", "rest_url", "partitions"))
    image, test_user, container_runtime = map(_answer, ("image", "test_user", "container_runtime"))
    local_passwords, memory_max, scratch = map(_answer, ("local_passwords", "memory_max", "scratch"))
    quotas, reservations, activity = map(_answer, ("quotas", "reservations", "activity"))

    aliases: Any = {
        "answers": "SetupApp.answers",
        "root": "SetupApp.root",
        **{each.name.replace("_", "-"): f"SetupApp.{each.name}" for each in QUESTIONS},
    }
    flags: Any = {
        **YES_FLAG,
        **{
            name: ({"SetupApp": {name.replace("-", "_"): True}}, text)
            for name, text in (
                ("no-input", "Ask nothing: fail with the list of what is missing; without --yes only show the diff."),
                ("ask-again", "Ask all questions again; what was answered before is proposed."),
                ("force", "Also write files that a person has changed; theirs are kept, with ~ at the end."),
                ("remove", "Remove what setup wrote and nobody has changed since; never data. Shows it first."),
                ("test", "Run the doctor and the test sessions also where nothing was to do."),
                ("no-test", "Leave out the doctor and the test sessions."),
            )
        },
    }

    _said: dict[str, str]
    _before: Mapping[str, str]

    @property
    def _here(self) -> bool:
        """Whether the files are for this machine."""
        return Path(self.root).resolve() == Path("/")

    async def work(self) -> int:
        """Set up, or remove."""
        if self.extra_args:
            raise UsageError(f"{self.extra_args[0]!r} is not an argument of this command; see --help")
        self._check_root()
        # An option with nothing in it is an answer, too: `--admin-group=` is nobody.
        flags = {each.name: getattr(self, each.name) for each in QUESTIONS if each.name in self.config.SetupApp}
        named = {**self._file(), **flags}
        early = complete({name: named[name] for name in BEFORE_SLURM if name in named}, Facts(), only=BEFORE_SLURM)
        disk = Disk(Path(self.root), f"/etc/{early['site']}", guarded=self._here)
        if self.remove:
            return await self._remove(disk, early["site"])
        self._said, self._before = {}, disk.record.answers
        again = {each.name for each in QUESTIONS if each.asked} if self.ask_again and self._can_ask else set()
        kept = {name: said for name, said in self._before.items() if name not in again}
        given = {**of_this_shell(), **kept, **named}
        early = complete({name: given[name] for name in BEFORE_SLURM if name in given}, Facts(), only=BEFORE_SLURM)
        commands = Commands(prefix=early["slurm_prefix"], conf=early["slurm_conf"], timeout=_SLURM_LIMIT)
        facts, values = await self._find_and_ask(commands, given, early["hub_user"], disk)
        answers, remembered = typed(values), {**given, **self._said, **{name: values[name] for name in STAY}}
        if facts.runtimes:
            remembered["container_runtime"] = values["container_runtime"]  # no job is needed the next time
        parse_profiles(offered(facts, answers))  # says which name of Slurm's a profile cannot have
        if self._here:
            check_state_folder(answers.state_folder, answers.hub_user)
        ours = Units(commands, units(answers), (timer(answers.site),))
        written = await self._write(disk, site_files(facts, answers, _sources()), remembered, ours)
        if written is None:
            return 1
        return await self._finish(commands, facts, answers, disk, written)

    @property
    def _can_ask(self) -> bool:
        return not self.no_input and can_ask()

    def _check_root(self) -> None:
        if self._here and os.geteuid() != 0:
            raise UsageError("run it as root (sudo carme-hub setup), or name another folder: --root FOLDER")
        if not Path(self.root).is_dir():
            raise UsageError(f"--root {self.root}: there is no such folder")

    # -- answers ------------------------------------------------------------------------------------------------------

    def _file(self) -> dict[str, str]:
        if not self.answers:
            return {}
        file = Path(self.answers)
        try:
            document = yaml.safe_load(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--answers {file} cannot be read: {error}") from error
        except yaml.YAMLError as error:
            raise UsageError(f"--answers {file} is not YAML: {' '.join(str(error).split())}") from error
        return from_document(document, str(file))

    async def _find_and_ask(
        self, commands: Commands, given: Mapping[str, str], hub_user: str, disk: Disk
    ) -> tuple[Facts, dict[str, str]]:
        ask = self._ask if self._can_ask else None
        facts = await self.with_progress("asking Slurm", find(commands, hub_user, look_up_users=self._here))
        facts = beside(facts, disk.others)
        print(found_text(facts))
        try:
            first = complete(given, facts, ask, only=BEFORE_NODES)
        except AnswersWrong:
            return facts, complete(given, facts, ask)  # lists all that is missing, not only these
        facts = self._with_image(facts, first["image"], disk)
        user = first["test_user"]
        if "container_runtime" not in given and (user or os.geteuid() != 0):
            looking = look_at_nodes(commands, facts, checks.words(first["partitions"]), user)
            facts = await self.with_progress("looking at a node of each partition", looking)
        for line in facts.notes:
            self.note(line)
        return facts, complete({**given, **self._said}, facts, ask)

    def _with_image(self, facts: Facts, path: str, disk: Disk) -> Facts:
        """Return the facts with the image's description; the one that was read before where it is not here now."""
        found, before = with_image(facts, path), disk.record.image
        if found.image:
            disk.record.image = {"path": path, "description": dict(found.image)}
        elif before.get("path") == path and isinstance(description := before.get("description"), dict):
            self.note(f"{path} cannot be read here now; what it said the last time still counts.")
            return replace(facts, image=description)
        return found

    def _ask(self, question: Question, default: str, wrong: str) -> str:
        default = self._before.get(question.name) or default
        if wrong:
            print(f"  {wrong}")
        try:
            nothing = "; - is nothing" if question.optional and default else ""
            said = input(f"{question.text}\n  {question.name} [{default}]{nothing}: ").strip() or default
        except EOFError:
            raise UsageError("the input has ended; nothing was written") from None
        said = "" if nothing and said == "-" else said
        self._said[question.name] = said
        return said

    # -- files --------------------------------------------------------------------------------------------------------

    async def _write(self, disk: Disk, files: Any, remembered: dict[str, str], named: Units) -> list[Change] | None:
        """Show and write; return what was written, None where it was not confirmed."""
        changes = disk.compare(files)
        todo = [each for each in changes if each.state in (State.NEW, State.OURS, State.LEFT)]
        todo += self._changed(
            [each for each in changes if each.state is State.CHANGED and each.wanted is not None], disk.shared
        )
        only_look = self.no_input and not self.yes
        if not todo:
            print("nothing to do")
            if only_look and self._here and runs_systemd() and disk.record.pending:
                self.note("But the hub was not restarted after the last change: add --yes.")
                return None
            if not only_look:
                disk.keep(changes, remembered)
            return []
        for each in todo:
            print(each.diff, end="\n\n")
        for each in todo:
            purpose = f"  {each.wanted.purpose}" if each.wanted else ""
            print(f"{'remove' if each.wanted is None else 'write':7}{each.path}{purpose}")
        print(links_text(disk, [each for each in todo if each.wanted is None]), end="")
        if only_look:
            self.note("Nothing was written: add --yes.")
            return None
        self.confirm("Write this?")
        if self._here and runs_systemd() and any(each.wanted is None for each in todo if each.path.endswith(".timer")):
            await named.end_timers()
        for line in disk.write(todo, remembered):
            print(line)
        disk.keep(changes, remembered)
        return todo

    def _changed(self, changes: Sequence[Change], shared: Mapping[str, str]) -> list[Change]:
        """Show files that a person has changed, and return those that may be written nevertheless.

        Args:
            shared: path to the name of another hub here whose file it is.
        """
        chosen = []
        for each in changes:
            said = f"was {'removed' if each.now is None else 'changed'} by a person"
            if each.path in shared:
                said = f"is the hub {shared[each.path]}'s (a folder of its own for this one: --libexec)"
            if self.force:
                chosen.append(each)  # and is shown with the others
                continue
            print(each.diff)
            if self.yes or not self._can_ask:
                print(f"{each.path} {said} and stays so; --force writes it\n")
            elif says_yes(f"{each.path} {said}. Write it? What is there now is kept, with ~ at the end. [y/N] "):
                chosen.append(each)
        return chosen

    async def _remove(self, disk: Disk, site: str) -> int:
        changes = disk.removals()
        ours = [each for each in changes if each.state is State.LEFT]
        if not changes:
            print(f"nothing to do: setup has written nothing for {site} here")
            return 0
        for each in changes:
            print(f"remove {each.path}" if each in ours else f"stays  {each.path}  (a person has changed it)")
        for path in sorted(disk.shared.keys() & disk.record.files.keys()):
            print(f"stays  {path}  (the hub {disk.shared[path]} needs it)")
        data = disk.record.answers.get("state_folder") or f"/var/lib/{site}"
        print(f"stays  {data}  (databases, secrets, certificates)")
        print(links_text(disk, ours), end="")
        if self.no_input and not self.yes:
            self.note("Nothing was removed: add --yes.")
            return 1
        running = self._here and runs_systemd()
        named = Units(Commands(), (f"{site}.service", f"{site}-proxy.service"), (timer(site),))
        ends = running and bool(named.there())
        self.confirm(f"{'End hub and proxy (sessions continue), and remove' if ends else 'Remove'} {len(ours)} files?")
        if ends:  # also where a person has changed the units: their configuration goes
            await named.end()
        for line in disk.remove(ours):
            print(line)
        if running:
            await named.forget()
        return 0

    # -- what follows -------------------------------------------------------------------------------------------------

    async def _finish(
        self, commands: Commands, facts: Facts, answers: Answers, disk: Disk, written: Sequence[Change]
    ) -> int:
        """Start the hub, run the doctor and the test sessions; return the exit status."""
        lacking = missing_programs(facts.programs)
        started = bool(written or disk.record.pending) and self._here and runs_systemd() and not lacking
        url = f"http://127.0.0.1:{answers.public_port}"
        named = Units(commands, units(answers), (timer(answers.site),))
        if self._here:
            make_state_folder(answers.state_folder, answers.hub_user)
        if started:
            await self._start(named, answers, disk, url)
        elif self._here and runs_systemd() and not await named.run():
            first = f"install {' and '.join(lacking)}, then: " if lacking else ""
            self.note(f"The hub does not run: {first}systemctl enable --now {named.proxy} {named.hub}")
        elif written and self._here and not runs_systemd():
            self.note("Not started: there is no systemd here.")
        if written:
            places = (answers.image_store, answers.folders)
            absent = [each for each in places if each and not (Path(self.root) / each.lstrip("/")).is_dir()]
            print(left_to_do(facts, answers, absent))
        if self.no_test or not (self.test or started):
            return 0
        from carme_hub.auth.secret_files import exposure  # here: it imports JupyterHub, which --help need not wait for

        hub_user = answers.hub_user if os.geteuid() == 0 else ""
        config = Path(self.root) / config_file(answers).lstrip("/")
        if open_to := exposure(config.with_name("secrets"), any_owner=True):
            self.note(f"Others can read a secret of the hub: {open_to}")
        ours = AsHub(commands, config, hub_user, SEARCH, config.with_name("secrets"))
        doctor = await self.with_progress("asking the doctor", ours.doctor())
        print(doctor.out + doctor.err, end="")
        wrong = doctor.code not in (0, 3)  # 3: something could not be looked at
        if not answers.test_user:
            self.note("No test sessions: name a user who may start them, --test-user.")
            return int(wrong)
        token = await ours.token(answers.test_user)
        results = await try_each(url, token, answers.test_user, offered(facts, answers), self.note)
        print(sessions_table(results))
        return int(wrong or any(each.why for each in results))

    async def _start(self, named: Units, answers: Answers, disk: Disk, url: str) -> None:
        paths = set(disk.record.pending)
        if paths & {config_file(answers), f"/etc/systemd/system/{named.hub}"}:
            await self.with_progress("restarting the hub", named.restart_hub())
        else:
            await self.with_progress("starting proxy and hub", named.start())
        disk.settle()
        if f"/etc/systemd/system/{named.proxy}" in paths:
            self.note(
                f"The proxy's unit has changed: systemctl restart {named.proxy} when it suits; open pages reconnect."
            )
        seconds = await self.with_progress("waiting for the hub", wait_until_ready(url))
        self.note(f"The hub answers after {seconds:.1f} s.")


def _sources() -> Sources:
    """Return what the package brings, for the place where it is installed."""
    share, programs = share_folder(), str(Path(sys.executable).parent)
    if wrong := checks.path(Facts(), {}, programs):
        raise ConfigError(f"units cannot name the folder in which this is installed. {wrong}")
    return Sources(
        bin=programs,
        templates={file.name: file.read_text("utf-8") for file in sorted((share / "setup").glob("*.j2"))},
        helpers={
            file.name: file.read_text("utf-8") for file in sorted((share / "libexec").iterdir()) if file.is_file()
        },
    )
