"""The plan of a rolling update: which nodes, how many at a time, what is run on them. Parsed from plain data. Pure.

Nothing is ignored: an unknown key or an invalid value is a ``ConfigError`` that begins with its location, such as
``groups[1].nodes``. docs/howto/update-nodes.md describes every key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from carme_hub.domain.administration.texts import MOST_REASON, MOST_TEXT, BadAct, checked_text
from carme_hub.domain.cluster.tres import hosts_of
from carme_hub.domain.quotas import policy_values as values
from carme_hub.domain.quotas.policy_values import config_error

#: The word that a node's name takes the place of, in argvs and in the text for users.
NODE = "{node}"
#: Characters of a title: Slurm's reason has it, with the name of the update and what failed.
MOST_TITLE = 80
_KEYS = (
    *("title", "groups", "at_once", "stop_after", "wait", "until", "at_deadline", "drained", "reservation"),
    *("text", "mail", "command", "check"),
)
_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SHARE = re.compile(r"([1-9][0-9]?|100) ?%")
_DEFAULT_LIMITS = {"command": 3600, "check": 120}
_CHECK_WITHIN = 900

AtDeadline = Literal["resume", "stop-sessions", "update"]
Drained = Literal["skip", "update"]


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the site, which runs on the host of ``carme-hub nodes``. ``limit``: seconds until it is ended."""

    argv: tuple[str, ...]
    limit: int

    def of(self, node: str) -> list[str]:
        """Return its argv for a node."""
        return [word.replace(NODE, node) for word in self.argv]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are updated before those of the next group. ``at_once``: how many may be out of service at a time."""

    name: str
    nodes: tuple[str, ...]
    at_once: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan.

    Attributes:
        title: why; users and Slurm's reason have it. stop_after: it stops when more nodes than this have failed.
        wait, until: the deadline by which a node must be empty, seconds after its drain and UTC epoch seconds; the
            earlier counts, 0 = there is none of this kind.
        at_deadline: what becomes of a node that is not empty then. drained: of one that somebody else has drained.
        reservation: seconds from the deadline on that the calendar reserves for it, 0 = none.
        text: for users on the node, "" = the usual one. mail: it is mailed, too.
        check: says by exit status 0 that a node is well. check_within: seconds in which it must once have said so.
    """

    title: str
    groups: tuple[Group, ...]
    command: Command
    stop_after: int = 0
    wait: int = 0
    until: float = 0.0
    at_deadline: AtDeadline = "resume"
    drained: Drained = "skip"
    reservation: int = 0
    text: str = ""
    mail: bool = False
    check: Command | None = None
    check_within: int = _CHECK_WITHIN

    def deadline(self, drained_at: float) -> float:
        """Return when a node that is drained then must be empty, UTC epoch seconds."""
        found = [at for at in (drained_at + self.wait if self.wait else 0.0, self.until) if at]
        return max(drained_at, min(found))

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, in the order in which their turn comes."""
        return tuple(node for group in self.groups for node in group.nodes)


def parse_plan(document: Mapping[str, object], zone: str) -> Plan:
    """Return the plan of a document.

    Args:
        zone: IANA zone of times without one.

    Raises:
        ConfigError: a key is unknown or missing, or a value is invalid.
    """
    for key in document:
        if key not in _KEYS:
            raise config_error(str(key), f"unknown key. {values.hint(key, _KEYS)}")
    for key in ("title", "groups", "command"):
        if document.get(key) is None:
            raise config_error(key, "it is missing; every plan has title, groups and command")
    at_once = document.get("at_once", 1)
    wait = values.duration(document["wait"], "wait") if "wait" in document else 0
    until = values.moment(document["until"], "until", zone, 0) if "until" in document else 0.0
    if not wait and not until:
        raise config_error("wait", "say how long a node may take to get empty, such as wait: 8h, or until: a time")
    check = document.get("check")
    return Plan(
        title=_line(document["title"], "title"),
        groups=_groups(document["groups"], at_once),
        command=_command(document["command"], "command", ("argv", "limit")),
        stop_after=values.count(document.get("stop_after", 0), "stop_after"),
        wait=wait,
        until=until,
        at_deadline=_one_of(document, "at_deadline", ("resume", "stop-sessions", "update")),  # type: ignore[arg-type]
        drained=_one_of(document, "drained", ("skip", "update")),  # type: ignore[arg-type]
        reservation=values.duration(document["reservation"], "reservation") if "reservation" in document else 0,
        text=_text(document["text"], "text", MOST_TEXT - MOST_REASON) if "text" in document else "",
        mail=values.flag(document, "mail", "plan"),
        check=_command(check, "check", ("argv", "limit", "within")) if check is not None else None,
        check_within=_within(check),
    )


def _groups(value: object, at_once: object) -> tuple[Group, ...]:
    found: list[Group] = []
    where_of: dict[str, str] = {}
    for number, item in enumerate(values.items(value, "groups")):
        where = f"groups[{number}]"
        data = values.mapping(item, where, ("nodes", "name", "at_once"))
        if "nodes" not in data:
            raise config_error(where, "it has no nodes; name them as nodes: node[01-16], or as a list")
        nodes = _nodes(data["nodes"], f"{where}.nodes")
        for node in nodes:
            if node in where_of:
                raise config_error(f"{where}.nodes", f"{node} is in {where_of[node]}.nodes already")
            where_of[node] = where
        name = _line(data.get("name", f"group {number + 1}"), f"{where}.name")
        place = f"{where}.at_once" if "at_once" in data else "at_once"
        most = _at_once(data.get("at_once", at_once), place, len(nodes))
        found.append(Group(name, nodes, most))
    if not found:
        raise config_error("groups", "it has no group; give a list such as - nodes: node[01-16]")
    return tuple(found)


def _nodes(value: object, where: str) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else values.items(value, where)
    found: list[str] = []
    for word in words:
        try:
            names = hosts_of(word) if isinstance(word, str) and word.strip() else ()
        except ValueError:
            names = ()
        if not names or not all(_NODE_NAME.fullmatch(name) for name in names):
            raise config_error(where, f"give nodes as Slurm writes them, such as node[01-16] or node7, not {word!r}")
        found += names
    if not found:
        raise config_error(where, "it is empty; name at least one node")
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise config_error(where, f"{', '.join(twice[:5])} is there twice")
    return tuple(found)


def _at_once(value: object, where: str, nodes: int) -> int:
    """Return how many nodes of a group may be out of service at a time, one at least."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return min(value, nodes)
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise config_error(where, f'give a number of nodes from 1 on, or a share such as "25 %", not {value!r}')
    return max(1, nodes * int(match[1]) // 100)


def _command(value: object, where: str, known: tuple[str, ...]) -> Command:
    data = values.mapping(value, where, known)
    if "argv" not in data:
        raise config_error(where, f'it has no argv; give a list of words such as [ssh, "root@{NODE}", update-node]')
    argv = values.items(data["argv"], f"{where}.argv")
    for word in argv:
        if not isinstance(word, str) or "\0" in word:
            raise config_error(f"{where}.argv", f"each word is a text; put {word!r} in quotes")
    if not argv or not str(argv[0]).strip():
        raise config_error(f"{where}.argv", "it is empty; its first word is the program")
    if not any(NODE in str(word) for word in argv):
        raise config_error(f"{where}.argv", f"no word has {NODE}, so it would be the same for every node")
    limit = values.duration(data["limit"], f"{where}.limit") if "limit" in data else _DEFAULT_LIMITS[where]
    if not limit:
        raise config_error(f"{where}.limit", "it leaves no time")
    return Command(tuple(str(word) for word in argv), limit)


def _within(check: object) -> int:
    if not isinstance(check, Mapping) or "within" not in check:
        return _CHECK_WITHIN
    return values.duration(check["within"], "check.within")


def _line(value: object, where: str) -> str:
    return " ".join(_text(value, where, MOST_TITLE).split())


def _text(value: object, where: str, most: int) -> str:
    try:
        return checked_text(value if isinstance(value, str) else "", where, most)
    except BadAct as error:
        raise config_error(where, f"give a text of at most {most} characters. {error.message}") from error


def _one_of(document: Mapping[str, object], key: str, known: tuple[str, ...]) -> str:
    value = document.get(key, known[0])
    if value not in known:
        raise config_error(key, f"give one of {', '.join(known)}, not {value!r}. {values.hint(value, known)}")
    return str(value)
