"""The variables that an image has by ``ENV`` and ``ARG`` of its Containerfile, as buildah sets them. Pure.

The hub starts sessions and reads nothing of a user's image, so it computes what the image's config would say: words are
split, quoted and expanded as in Dockerfiles (docs.docker.com/reference/dockerfile, "Environment replacement").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .builds import CannotBuild
from .containerfile import Containerfile, Instruction, parse_containerfile

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACES = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::([-+])(.*))?", re.DOTALL)
#: More than an image of this world has.
_MOST, _LONGEST = 200, 8192


#: PATH of an image that sets none.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def variables_of(text: str, below: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an image by the Containerfile that has built it.

    Args:
        below: those of the image below it.
    """
    return environ_of(parse_containerfile(text, ("*",)), below)


def environ_of(file: Containerfile, below: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the image.

    Args:
        below: those of the image below it.

    Raises:
        CannotBuild: an instruction cannot be read, or there are too many variables, or too long ones.
    """
    environ, defaults = {"PATH": PATH, **below}, _arguments(file.arguments)
    arguments: dict[str, str] = {}
    for each in file.layers():
        known = {**arguments, **environ}
        try:
            if each.keyword == "ENV":
                environ |= _pairs(each.text, known)
            elif each.keyword == "ARG":
                for name, value in _declared(each.text, known):
                    arguments[name] = defaults.get(name, "") if value is None else value
        except CannotBuild as error:
            raise CannotBuild(f"Line {each.line}: {error.message}") from error
        if len(environ) > _MOST or any(len(value) > _LONGEST for value in (*environ.values(), *arguments.values())):
            raise CannotBuild(f"Line {each.line}: there are more than {_MOST} variables, or one is too long.")
    return environ


def _arguments(arguments: Iterable[Instruction]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in arguments:
        found |= {name: value or "" for name, value in _declared(each.text, found)}
    return found


def _declared(text: str, known: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return the names of an ``ARG``, with their defaults, None = none."""
    found = []
    for word in words(text, known):
        name, sign, value = word.partition("=")
        _check(name)
        found.append((name, value if sign else None))
    return found


def _pairs(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an ``ENV``: ``NAME=VALUE …``, or in its old form ``NAME VALUE``."""
    first = re.split(r"[ \t]", text, maxsplit=1)
    if "=" not in first[0]:
        _check(first[0])
        if len(first) < 2:
            raise CannotBuild(f"ENV {first[0][:40]} has no value.")
        return {first[0]: words(first[1].strip(" \t"), known, split=False)[0]}
    found = {}
    for word in words(text, known):
        name, sign, value = word.partition("=")
        _check(name)
        if not sign:
            raise CannotBuild(f"ENV {name[:40]} has no value: write NAME=VALUE, with quotes around spaces.")
        found[name] = value
    return found


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise CannotBuild(f"“{name[:40]}” is not the name of a variable.")


def words(text: str, known: Mapping[str, str], *, split: bool = True) -> list[str]:
    """Return the words of a text, without its quotes, and with the values of its variables.

    Args:
        split: at spaces outside of quotes; else it is one word.

    Raises:
        CannotBuild: a quote or a brace has no end.
    """
    found: list[str] = []
    word, begun, quote, at = "", False, "", 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == quote and quote:
            quote = ""
        elif quote == "'":
            word += letter
        elif letter in "'\"" and not quote:
            quote, begun = letter, True
        elif letter == "\\" and at < len(text):
            # Between double quotes a backslash is one, unless it stands before what it can take the meaning of.
            word += text[at] if not quote or text[at] in '"$\\' else f"\\{text[at]}"
            at, begun = at + 1, True
        elif letter == "$":
            value, at = _variable(text, at, known)
            word, begun = word + value, True
        elif split and not quote and letter in " \t":
            found += [word] if begun else []
            word, begun = "", False
        else:
            word, begun = word + letter, True
        if len(word) > _LONGEST:
            raise CannotBuild("A value is too long.")
    if quote:
        raise CannotBuild(f"A quote ({quote}) has no end.")
    return [*found, word] if begun or not split else found


def _variable(text: str, at: int, known: Mapping[str, str]) -> tuple[str, int]:
    """Return the value of the variable that begins at a place, and the place behind it."""
    if text[at : at + 1] != "{":
        found = _NAME.match(text, at)
        return (known.get(found[0], ""), found.end()) if found else ("$", at)
    end = text.find("}", at)
    inside = _BRACES.fullmatch(text[at + 1 : end]) if end > 0 else None
    if inside is None:
        raise CannotBuild(f"“${text[at : at + 40]}” is not a variable that is read here.")
    name, how, other = inside.groups()
    value = known.get(name, "")
    if how == "-":
        value = value or words(other, known, split=False)[0]
    elif how == "+":
        value = words(other, known, split=False)[0] if value else ""
    return value, end + 1
