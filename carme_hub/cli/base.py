"""Base classes of the commands, and what they share: options, exit status, confirmation, progress, tables.

Exit status: 0 done; 1 refused, or something differs; 2 the question could not be asked or the command line is wrong.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import pwd
import sys
import time
import uuid
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from traitlets import Bool, TraitError, Unicode
from traitlets.config import Application, Config

from carme_hub.domain.ledger.entries import SYSTEM_ACTOR
from carme_hub.errors import CarmeError, Refused

from .broken_pipe import EXIT_SIGPIPE, stdout_is_closed

T = TypeVar("T")
_COMMON_OPTIONS = ("h", "help", "help-all", "version", "V")


class UsageError(CarmeError):
    """The command line is wrong; the message says what to write instead."""


class ConfiguredApp(Application):
    """A command that reads the hub's configuration."""

    config_path = Unicode(
        "jupyterhub_config.py", help="The hub's configuration file. The default is the one in the working folder."
    ).tag(config=True)
    as_json = Bool(False, help="Print one JSON document in place of text.").tag(config=True)
    yes = Bool(False, help="Do not ask for confirmation of what cannot be undone.").tag(config=True)

    aliases: Any = {"config": "ConfiguredApp.config_path", "f": "ConfiguredApp.config_path"}
    flags: Any = {"json": ({"ConfiguredApp": {"as_json": True}}, "Print one JSON document in place of text.")}

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read the command line; exit with 2 where it is wrong."""
        try:
            super().initialize(argv)
        except SystemExit as end:
            self.exit(2 if end.code == 1 else end.code)

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """Refuse unknown options: a credit with a misspelt ``--expires`` would never expire."""
        words = sys.argv[1:] if argv is None else argv
        known = {name for key in (*self.aliases, *self.flags) for name in ((key,) if isinstance(key, str) else key)}
        for word in words[: words.index("--")] if "--" in words else words:
            name = word.lstrip("-").partition("=")[0]
            if word.startswith("-") and name and name not in {*known, *_COMMON_OPTIONS} and "." not in name:
                close = difflib.get_close_matches(name, sorted(known), 1)
                hint = f"Did you mean --{close[0]}?" if close else "--help lists them."
                self.fail(f"there is no option {word.partition('=')[0]}. {hint}")
        super().parse_command_line(argv)

    def start(self) -> None:
        """Do the work and exit; print an error on stderr, in one line."""
        super().start()
        try:
            code = asyncio.run(self.work())
        except Refused as error:
            if self.as_json:
                self.print_json({"error": error.reason, "message": error.message})
            self.fail(error.message, 1)
        except (CarmeError, TraitError, OSError) as error:
            if isinstance(error, BrokenPipeError) and stdout_is_closed():
                self.exit(EXIT_SIGPIPE)
            self.fail(str(error))
        except KeyboardInterrupt:
            code = 130
        self.exit(code)

    async def work(self) -> int:
        """Do the work and return the exit status."""
        raise NotImplementedError

    def fail(self, message: str, code: int = 2) -> None:
        """Print why it was not done, and exit."""
        print(f"{self.name}: {message}", file=sys.stderr)
        self.exit(code)

    def configuration(self) -> Config:
        """Return the settings of the hub's configuration file."""
        from .hub_config import load_config  # here: importing JupyterHub takes a second, which --help need not wait for

        return load_config(Path(self.config_path))

    def print_json(self, document: object) -> None:
        """Print a JSON document."""
        print(json.dumps(document, ensure_ascii=False, indent=1))

    def note(self, line: str) -> None:
        """Print a line on stderr, besides the result."""
        print(line, file=sys.stderr, flush=True)

    def confirm(self, question: str) -> None:
        """Ask for confirmation unless ``--yes`` is given; raise ``Refused`` where the answer is no."""
        if self.yes:
            return
        if not can_ask():
            raise UsageError(f"{question} There is no terminal to ask on: add --yes.")
        if not says_yes(f"{question} [y/N] "):
            raise Refused("Nothing was done.", reason="not-confirmed")

    async def with_progress(self, what: str, work: Awaitable[T]) -> T:
        """Return the result of the work; where it takes more than a second, show what is in progress."""
        task, began, shown = asyncio.ensure_future(work), time.monotonic(), False
        while not (await asyncio.wait({task}, timeout=1.0))[0]:
            if sys.stderr.isatty():
                print(f"\r{what}: {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True)
            elif not shown:
                self.note(f"{what} …")
            shown = True
        if shown and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        return task.result()


def can_ask() -> bool:
    """Return whether there is a terminal on which a person could answer; standard input may also be closed."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except (OSError, ValueError):
        return False


def says_yes(question: str) -> bool:
    """Return whether a person says yes in the terminal; the end of the input is a no."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


class CommandGroup(Application):
    """A command that only has subcommands."""

    def start(self) -> None:
        """Run the subcommand, or print the help."""
        if self.subapp is None:
            if self.extra_args:
                wrong = self.extra_args[0]
                close = difflib.get_close_matches(wrong, sorted(self.subcommands), 1)
                hint = f"Did you mean {close[0]}?" if close else "--help lists them."
                print(f"{self.name}: there is no command {wrong!r}. {hint}", file=sys.stderr)
                self.exit(2)
            self.print_help()
            self.exit(1)
        super().start()


#: The flag of the commands that ask for confirmation.
YES_FLAG: dict[str, Any] = {
    "yes": ({"ConfiguredApp": {"yes": True}}, "Do not ask for confirmation of what cannot be undone.")
}


def actor() -> str:
    """Return the name of the person who runs the command; for root under sudo, the user who called sudo.

    A system user may have the name under which the ledger's rules write. The prefix marks the entry as a person's.
    """
    name = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    try:
        name = name or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
    return f"user:{name}" if name == SYSTEM_ACTOR else name


def new_key(key: str) -> str:
    """Return the idempotency key, or a new one where it is empty."""
    return key or f"cli-{uuid.uuid4()}"


def positional_arguments(app: ConfiguredApp, *names: str) -> Sequence[str]:
    """Return the positional arguments; raise ``UsageError`` where their number is not that of the names."""
    if len(app.extra_args) != len(names):
        raise UsageError(f"usage: {app.name} {' '.join(names)}".rstrip() + " [options]; see --help")
    return app.extra_args


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], numeric: str = "") -> str:
    """Return a table as text.

    Args:
        numeric: the headers of columns that hold numbers, separated by blanks; ``_`` stands for a blank in a header.
    """
    from tabulate import tabulate  # here: most commands print no table

    numbers = {word.replace("_", " ") for word in numeric.split()}
    return tabulate(
        [[str(cell) for cell in row] for row in (headers, *rows)],
        tablefmt="plain",
        disable_numparse=True,  # an account may have the name 007
        preserve_whitespace=True,
        colalign=["right" if head in numbers else "left" for head in headers],
    )
