"""What setup has to know: one question for each answer, with its default from the facts and its check. Pure.

All answers are text here, as people write them in a terminal, in flags and in a file of answers: lists are separated by
commas, and yes and no are words. ``answers`` makes typed values of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import PurePosixPath

from carme_hub.containers.registry import RUNTIMES

from .facts import Facts

Given = Mapping[str, str]
#: Files of units and of sudoers take these names alike; sudo ignores names with a dot or a tilde.
_UNIT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,60}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
#: Paths stand in units, sudoers, Python and the web server's file, each of which quotes differently.
_PATH = re.compile(r"/[A-Za-z0-9_./+-]*[A-Za-z0-9_+-]")
_MEMORY = re.compile(r"[1-9][0-9]{0,5}[MG]")
_REST = re.compile(r"unix:///[A-Za-z0-9_./-]+|https?://[A-Za-z0-9_.:\[\]-]+")
YES, NO = ("yes", "y", "true", "on", "1"), ("no", "n", "false", "off", "0")
#: Which runtime is proposed for a format of images, the first that nodes have.
_PREFERRED = {
    "sif": ("apptainer",),
    "sqfs": ("enroot", "pyxis", "charliecloud", "apptainer"),
    "host": ("bubblewrap",),
    "dir": ("apptainer", "charliecloud", "bubblewrap", "podman", "enroot"),
}


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        name: of the answer, in a file and as a flag. text: what is asked, and the help of the flag.
        default: from the facts and the answers before it; "" = a person must say, unless ``optional``.
        check: the facts, the answers and the text → what is wrong with it, "" if nothing is.
        asked: in a terminal, where nobody has said it; the others keep their defaults there.
        when: whether the answer matters, by the answers before it.
    """

    name: str
    text: str
    default: Callable[[Facts, Given], str]
    check: Callable[[Facts, Given, str], str]
    asked: bool = True
    optional: bool = False
    when: Callable[[Given], bool] = lambda _: True


def image_format(path: str) -> str:
    """Return the format of an image by its name, as ``SlurmContainerSpawner.images`` has it."""
    suffix = PurePosixPath(path).suffix
    return {".sif": "sif", ".sqfs": "sqfs", ".squashfs": "sqfs"}.get(suffix, "dir")


def yes(text: str) -> bool:
    """Return whether a checked answer is yes."""
    return text.lower() in YES


def words(text: str) -> tuple[str, ...]:
    """Return the words of a list."""
    return tuple(word for word in (part.strip() for part in text.split(",")) if word)


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Return the sentence that a name is unknown, with the nearest known one and the list."""
    there = sorted(known)
    close = difflib.get_close_matches(name, there, 1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"there is no {what} {name!r}.{hint} There are: {', '.join(there[:20]) or 'none'}"


def _fixed(text: str) -> Callable[[Facts, Given], str]:
    return lambda _facts, _given: text


def _like(pattern: re.Pattern[str], rule: str) -> Callable[[Facts, Given, str], str]:
    return lambda _facts, _given, text: "" if pattern.fullmatch(text) else f"{text!r}: {rule}"


def _path(_facts: Facts, _given: Given, text: str) -> str:
    if not _PATH.fullmatch(text) or ".." in PurePosixPath(text).parts or str(PurePosixPath(text)) != text:
        return f"{text!r}: write an absolute path of letters, digits and the characters . _ + - /"
    return ""


def _one_of(*names: str) -> Callable[[Facts, Given, str], str]:
    return lambda _facts, _given, text: "" if text in names else f"{text!r}: write one of {', '.join(names)}"


def _yes_or_no(_facts: Facts, _given: Given, text: str) -> str:
    return "" if text.lower() in (*YES, *NO) else f"{text!r}: write yes or no"


def _port(_facts: Facts, given: Given, text: str) -> str:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1024 <= number <= 65535:
        return f"{text!r}: write a port from 1024 to 65535"
    taken = [name for name in ("hub_port", "public_port") if given.get(name) == text]
    return f"{text}: {taken[0]} is that port already" if taken else ""


def _address(_facts: Facts, _given: Given, text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError:
        return "" if _HOST.fullmatch(text) else f"{text!r} is neither an address nor the name of a machine"
    return f"{text} stands for every address; name the one that nodes reach" if address.is_unspecified else ""


def _user(facts: Facts, given: Given, text: str) -> str:
    if wrong := _like(_USER, "a user's name has lower-case letters, digits, - and _")(facts, given, text):
        return wrong
    if facts.users is not None and text not in facts.users:
        return f"there is no user {text!r} on this machine; the same user is needed here and on Slurm's controller"
    return ""


def _group(facts: Facts, given: Given, text: str) -> str:
    rule = "a group's name has letters, digits and . _ - (others have to be quoted in sudoers: write that file by hand)"
    if wrong := _like(_GROUP, rule)(facts, given, text):
        return wrong
    if facts.groups is not None and text not in facts.groups:
        return f"there is no group {text!r} on this machine (getent group {text})"
    return ""


def _partitions(facts: Facts, _given: Given, text: str) -> str:
    names = [each.name for each in facts.partitions]
    if not words(text):
        return "name at least one partition"
    return "; ".join(nearest(name, names, "partition") for name in words(text) if name not in names)


def _offered(facts: Facts, _given: Given) -> str:
    return ",".join(each.name for each in facts.partitions if not each.reserved and each.nodes)


def _way(facts: Facts, _given: Given) -> str:
    return "sudo" if facts.sudo else "rest" if facts.jwt_key else ""


def _submit_via(facts: Facts, given: Given, text: str) -> str:
    if wrong := _one_of("sudo", "rest")(facts, given, text):
        return wrong
    if not facts.sudo:
        return "sudo is not on this machine; both ways need it, for one helper with one rule (apt install sudo)"
    if text == "rest" and not facts.jwt_key:
        return (
            "Slurm accepts no tokens: AuthAltTypes=auth/jwt and AuthAltParameters=jwt_key=… in slurm.conf; or use sudo"
        )
    return ""


def _runtime(facts: Facts, given: Given) -> str:
    kind = "host" if facts.image.get("base") == "host" else image_format(given.get("image", ""))
    return next((name for name in _PREFERRED[kind] if name in facts.common_runtimes), "")


def _known_runtime(facts: Facts, given: Given, text: str) -> str:
    if text not in RUNTIMES:
        return nearest(text, RUNTIMES, "container runtime")
    kind = image_format(given.get("image", ""))
    if kind not in RUNTIMES[text].formats:
        fits = ", ".join(name for name, each in RUNTIMES.items() if kind in each.formats)
        return f"{text} does not run images of the format {kind}; these do: {fits}"
    lacking = sorted(name for name, found in facts.runtimes.items() if text not in found)
    return f"{text} is not on the nodes of {', '.join(lacking)}" if lacking else ""


def _web(facts: Facts, _given: Given) -> str:
    return next((name for name in ("nginx", "caddy") if name in facts.programs), "none")


def _with_nginx(given: Given) -> bool:
    return given.get("web_server") == "nginx"


def _with_rest(given: Given) -> bool:
    return given.get("submit_via") == "rest"


#: In the order in which they are asked: a default looks at the answers before it.
QUESTIONS: tuple[Question, ...] = (
    Question(
        "site",
        "Name of the units, of the folders below /etc and /var/lib, and of the files in /etc: one for each hub here.",
        _fixed("carme-hub"),
        _like(_UNIT, "systemd and sudo take letters, digits, - and _ here, a letter first"),
        asked=False,
    ),
    Question("hub_user", "The user that the hub runs as.", _fixed("carme-hub"), _user, asked=False),
    Question(
        "state_folder",
        "Folder for databases, secrets and certificates.",
        lambda _, given: f"/var/lib/{given.get('site', 'carme-hub')}",
        _path,
        asked=False,
    ),
    Question(
        "libexec",
        "Folder of the helpers; their settings are in etc beside it.",
        _fixed("/usr/local/libexec"),
        _path,
        asked=False,
    ),
    Question(
        "slurm_prefix",
        "Folder whose bin has Slurm's commands. Nothing = they are on the PATH.",
        _fixed(""),
        _path,
        asked=False,
        optional=True,
    ),
    Question(
        "slurm_conf",
        "Client configuration for Slurm's commands (SLURM_CONF). Nothing = Slurm's own.",
        _fixed(""),
        _path,
        asked=False,
        optional=True,
    ),
    Question(
        "cluster",
        "Name of the cluster.",
        lambda facts, _: facts.cluster,
        _like(_WORD, "Slurm takes letters, digits and . _ - here"),
        asked=False,
    ),
    Question(
        "host",
        "Name of the hub as in a browser, without https://.",
        lambda facts, _: facts.host,
        _like(_HOST, "write the name of a machine, such as hub.example.org"),
    ),
    Question(
        "web_server",
        "What speaks TLS in front of the hub: nginx, caddy (a file for it is written), or none (you do it yourself).",
        _web,
        _one_of("nginx", "caddy", "none"),
    ),
    Question(
        "tls_certificate", "File of the certificate for that name, with its chain.", _fixed(""), _path, when=_with_nginx
    ),
    Question("tls_key", "File of the certificate's key.", _fixed(""), _path, when=_with_nginx),
    Question(
        "hub_address",
        "Address or name of this machine, as compute nodes reach it.",
        lambda facts, _: facts.addresses[0] if facts.addresses else "",
        _address,
    ),
    Question("hub_port", "Port of the hub for the nodes.", _fixed("8081"), _port, asked=False),
    Question("public_port", "Port of the proxy on 127.0.0.1, for the web server.", _fixed("8000"), _port, asked=False),
    Question("proxy_api_port", "Port of the proxy on 127.0.0.1, for the hub.", _fixed("8001"), _port, asked=False),
    Question("group", "Group of the system whose members may log in and start sessions.", _fixed(""), _group),
    Question(
        "admin_group",
        "Group of the system whose members administer the hub; nothing = nobody.",
        _fixed(""),
        _group,
        optional=True,
    ),
    Question("submit_via", "How jobs are submitted as their users: sudo, or rest (slurmrestd).", _way, _submit_via),
    Question(
        "rest_url",
        "Address of slurmrestd: unix:///run/slurmrestd/slurmrestd.sock or http://host:6820.",
        _fixed(""),
        _like(_REST, "write unix:///path or http://host:port"),
        when=_with_rest,
    ),
    Question("partitions", "Partitions to offer, a profile for each.", _offered, _partitions),
    Question("image", "Container image that sessions start in: a path on the compute nodes.", _fixed(""), _path),
    Question(
        "test_user",
        "A user for the test: looks on a node for container runtimes, and starts the test sessions. Nothing = nobody.",
        _fixed(""),
        _user,
        optional=True,
    ),
    Question("container_runtime", f"Container runtime of the nodes: {', '.join(RUNTIMES)}.", _runtime, _known_runtime),
    Question(
        "local_passwords",
        "Whether passwords are in this machine's /etc/shadow, which the hub then reads by the group shadow.",
        lambda facts, _: "yes" if facts.local_passwords else "no",
        _yes_or_no,
        asked=False,
    ),
    Question("quotas", "Keep accounts of GPU time.", _fixed("no"), _yes_or_no, asked=False),
    Question("reservations", "Keep a calendar in which GPUs are booked.", _fixed("no"), _yes_or_no, asked=False),
    Question("activity", "Measure what jobs use.", _fixed("no"), _yes_or_no, asked=False),
    Question(
        "memory_max",
        "Most memory of the hub with its services (MemoryMax of its unit), such as 4G.",
        _fixed("4G"),
        _like(_MEMORY, "write a number and M or G, such as 4G"),
        asked=False,
    ),
)
TEXTS: Mapping[str, str] = {each.name: each.text for each in QUESTIONS}
#: What has to be known before Slurm can be asked, and before a node can be looked at.
BEFORE_SLURM = ("site", "hub_user", "slurm_prefix", "slurm_conf")
BEFORE_NODES = (*BEFORE_SLURM, "group", "partitions", "image", "test_user")
