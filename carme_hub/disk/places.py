"""The places of ``CarmeQuotas.disk_places``: what an administrator writes, checked, and the questions for one user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carme_hub.disk.readers import PROJECT, READERS, USER, Question
from carme_hub.errors import ConfigError

_KEYS = ("path", "reader", "file_system", "of", "name", "prefix")


@dataclass(frozen=True, slots=True)
class Place:
    """One entry of the setting. ``{user}``, ``{account}`` and ``{home}`` stand for those of the user asked about."""

    path: str
    reader: str
    file_system: str
    of: str
    name: str
    prefix: tuple[str, ...] = ()

    @property
    def needs_home(self) -> bool:
        """Whether it asks for the user's home."""
        return "{home}" in self.path + self.file_system

    def questions(self, user: str, accounts: Sequence[str], home: Callable[[str], str]) -> Iterator[Question]:
        """Yield what to ask for a user: once, or for each account where the place is the accounts'."""
        values = {"user": user, "home": home(user) if self.needs_home else ""}
        if self.needs_home and not values["home"]:
            return
        per_account = any("{account}" in text for text in (self.path, self.file_system, self.name))
        for account in accounts if per_account else ("",):
            filled = [text.format(**values, account=account) for text in (self.path, self.file_system, self.name)]
            yield Question(filled[0], filled[1], filled[2], self.of)


def places_of(entries: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Return the places of the setting.

    Raises:
        ConfigError: an entry cannot be understood; the message says which and why.
    """
    return [_place(number, dict(entry)) for number, entry in enumerate(entries, 1)]


def _place(number: int, entry: dict[str, Any]) -> Place:
    def wrong(why: str) -> ConfigError:
        return ConfigError(f"CarmeQuotas.disk_places, entry {number}: {why}")

    for key in entry:
        if key not in _KEYS:
            raise wrong(f"{key!r} is none of {', '.join(_KEYS)}.")
    path, reader = entry.get("path"), entry.get("reader")
    if not isinstance(path, str) or not (path.startswith("/") or path.startswith("{home}")):
        raise wrong("path is an absolute path, such as /home/{user}.")
    if reader not in READERS:
        raise wrong(f"reader is one of {', '.join(READERS)}.")
    prefix = entry.get("prefix", [])
    if not isinstance(prefix, (list, tuple)) or not all(isinstance(word, str) for word in prefix):
        raise wrong('prefix is a list of words, such as ["sudo", "-n"].')
    default = USER if reader != "btrfs" else PROJECT
    of = entry.get("of", default)
    if of not in READERS[reader].of:
        raise wrong(f"of is one of {', '.join(READERS[reader].of)} for {reader}.")
    name = entry.get("name", "{account}" if "{account}" in path else "{user}")
    file_system = entry.get("file_system", path.partition("/{")[0] or "/" if "{home}" not in path else path)
    place = Place(path, reader, file_system, of, name, tuple(prefix))
    try:
        list(place.questions("user", ["account"], lambda _user: "/home/user"))
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise wrong(f"{{user}}, {{account}} and {{home}} are all that can stand in braces ({error}).") from error
    return place
