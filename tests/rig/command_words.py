"""The `carme-hub` commands that the docs name, and whether the command line has them.

A command is found in code blocks and in code within sentences: behind a prompt, `sudo`, a path or cron's five fields,
and up to a pipe, a redirection or a comment. ``wrong`` asks the classes of the command line, and for the commands of a
session, which take their own arguments, the help that they print.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from traitlets.config import Application

from carme_hub.cli.app import CarmeHubApp
from carme_hub.cli.train import DelegatedCommand
from carme_hub.training import command

NAME = "carme-hub"
_BLOCK = re.compile(r"^([ \t]*)```[a-z]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
#: Where a command begins: not in a path that goes on, nor within the name of a unit or of a file.
_START = re.compile(rf"(?:^|(?<=[\s(=/])){NAME}(?=\s|$)")
#: What may stand before it. Elsewhere it is the name of a user, of a unit or of a package.
_BEFORE = re.compile(
    r"""^(?:.*(?:[|;&]|\$\(|ExecStart=))?\s*  # another command, or a unit
    (?:\$\ )?(?:(?:\S+\ +){5}\w+\ +)?       # a prompt, or cron's times and user
    (?:[A-Z_]+=\S*\ +)*(?:sudo\ +(?:-u\ +\S+\ +)?)?(?:/\S*/)?$""",
    re.VERBOSE,
)
_END = frozenset("();<>|&")
_COMMON = ("-h", "--help", "--help-all", "--version", "--log-level", "--debug", "--generate-config")
#: In a sentence these stand for any word.
_ANY = ("…", "...")


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words after ``carme-hub`` of each command that a page has, in order; blocks first."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.findall(text):
        yield from commands_in(block[1].replace("\\\n", " "))
    for code in _INLINE.findall(_BLOCK.sub("", text)):
        if code.startswith((f"{NAME} ", "sudo ")):
            yield from commands_in(code.replace("\\|", "|"))


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words after ``carme-hub`` of each command in lines of a shell, of cron or of a unit."""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        for start in _START.finditer(line):
            if not _BEFORE.match(line[: start.start()]) or re.match(r"\s+ALL=", line[start.end() :]):
                continue  # the latter is a rule of sudo about a user of that name
            yield _words(line[start.end() :], substituted="$(" in line[: start.start()])


def _words(rest: str, *, substituted: bool) -> list[str]:
    if substituted:
        rest = rest.partition(")")[0]
    reader = shlex.shlex(rest, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    found: list[str] = []
    try:
        for word in reader:
            if set(word) <= _END:
                break
            found.append(word)
    except ValueError:
        pass  # a quotation that began before the command, or ends in the next line
    return found


def leaf(words: list[str]) -> tuple[type[Application], list[str]]:
    """Return the class of a command and what is left for it.

    Raises:
        LookupError: there is no such command; the message names it.
    """
    app: type[Application] = CarmeHubApp
    rest = list(words)
    while rest and (table := _table(app.subcommands)):
        if rest[0] not in table:
            if rest[0].startswith("-") or rest[0] in _ANY or app.start is not _group_start(app):
                break
            raise LookupError(f"{app.name or NAME} has no command {rest[0]!r}")
        target = table[rest.pop(0)][0]
        if isinstance(target, str):
            module, _, name = target.rpartition(".")
            target = getattr(import_module(module), name)
        app = target
    return app, rest


def _group_start(app: type[Application]) -> Any:
    """Return the method of a command that only has subcommands."""
    from carme_hub.cli.base import CommandGroup

    return app.start if app is CarmeHubApp or issubclass(app, CommandGroup) else None


def wrong(words: list[str]) -> str:
    """Return what the command line does not have of a command; "" where it has all."""
    try:
        app, rest = leaf(words)
    except LookupError as error:
        return str(error)
    if issubclass(app, DelegatedCommand):
        return _wrong_in_session(app.command_name, rest)
    takes_value, flags = _options(app)
    unknown = []
    for place, word in enumerate(rest):
        name = word.partition("=")[0]
        if not re.fullmatch(r"--?[a-zA-Z][\w.-]*", name) or (place and rest[place - 1] in takes_value):
            continue
        if name not in takes_value | flags and name not in _COMMON and "." not in name:
            unknown.append(name)
    return f"{NAME} {' '.join(words)}: there is no option {', '.join(unknown)}" if unknown else ""


def _options(app: type[Application]) -> tuple[set[str], set[str]]:
    """Return the options that take a value, and those that do not, with their dashes."""
    return _dashed(_table(app.aliases)), _dashed(_table(app.flags))


def _dashed(table: dict[Any, Any]) -> set[str]:
    names = {name for key in table for name in (key if isinstance(key, tuple) else (key,))}
    return {f"-{name}" if len(name) == 1 else f"--{name}" for name in names}


def _table(value: Any) -> dict[Any, Any]:
    """Return a class's table; a class without one has the bare trait."""
    return value if isinstance(value, dict) else {}


def _wrong_in_session(name: str, rest: list[str]) -> str:
    """Return what the help of a session's command does not name."""
    ours = []
    for word in rest:  # what comes after a script is the script's
        if word in ("--", "-m") or word.endswith((".py", ".sh")):
            break
        ours.append(word)
    part = [ours[0]] if ours and name in ("runs", "scaling", "kernels") and re.fullmatch(r"[a-z]+", ours[0]) else []
    text = _help(name, *part)
    if text is None:
        return f"{NAME} {name} has no command {part[0]!r}"
    options = [word.partition("=")[0] for word in ours if re.match(r"--?[a-z]", word)]
    unknown = [each for each in options if not re.search(rf"(?<![\w-]){re.escape(each)}(?![\w-])", text)]
    return f"{NAME} {name} {' '.join(rest)}: the help does not name {', '.join(unknown)}" if unknown else ""


@cache
def _help(*words: str) -> str | None:
    """Return what a session's command prints for ``--help``; None where it does not know the command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status = command.main([*words, "--help"])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    return None if status else said.getvalue()
