"""Checks of answers: what is wrong with a text, in a sentence that says what to write instead. Pure.

All answers are text here, as people write them in a terminal, in flags and in a file of answers: lists are separated by
commas, and yes and no are words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from pathlib import PurePosixPath

from carme_hub.containers.registry import RUNTIMES

from .facts import Facts

Given = Mapping[str, str]
#: Files of units and of sudoers take these names alike; sudo ignores names with a dot or a tilde.
UNIT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,60}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
#: Users of a directory service have names of more kinds; these stand in no file. As carme-token has it.
_PERSON = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
#: Paths stand in units, sudoers, Python and the web server's file, each of which quotes differently.
_PATH = re.compile(r"/[A-Za-z0-9_./+-]*[A-Za-z0-9_+-]")
MEMORY = re.compile(r"[1-9][0-9]{0,5}[MG]")
REST = re.compile(r"unix:///[A-Za-z0-9_./-]+|https?://[A-Za-z0-9_.:\[\]-]+")
#: Folders of the system: read-only for the units, or gone with the next boot.
_OF_SYSTEM = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/run"),
    *("/tmp", "/var/tmp"),  # noqa: S108  nothing is written there
)
YES, NO = ("yes", "y", "true", "on", "1"), ("no", "n", "false", "off", "0")
#: The first port of each kind, and what it is for.
PORTS: Mapping[str, tuple[int, str]] = {
    "hub_port": (8081, "Port of the hub for the nodes."),
    "public_port": (8000, "Port of the proxy on 127.0.0.1, for the web server."),
    "proxy_api_port": (8001, "Port of the proxy on 127.0.0.1, for the hub."),
    "services_port": (10102, "First of three ports on 127.0.0.1, for the services: quotas, reservations, activity."),
    "images_port": (10105, "Port of the service of images on 127.0.0.1."),
    "folders_port": (10106, "Port of the service of shared folders on 127.0.0.1."),
}


def image_format(path: str) -> str:
    """Return the format of an image by its name, as ``SlurmContainerSpawner.images`` has it."""
    suffix = PurePosixPath(path).suffix
    return {".sif": "sif", ".sqsh": "sqfs", ".sqfs": "sqfs", ".squashfs": "sqfs"}.get(suffix, "dir")


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


def like(pattern: re.Pattern[str], rule: str) -> Callable[[Facts, Given, str], str]:
    """Return the check that a text has the form of a pattern; the rule says it in words."""
    return lambda _facts, _given, text: "" if pattern.fullmatch(text) else f"{text!r}: {rule}"


def path(_facts: Facts, _given: Given, text: str) -> str:
    """Return what is wrong with a path; it stands in units, sudoers, Python and the web server's file."""
    if not _PATH.fullmatch(text) or ".." in PurePosixPath(text).parts or str(PurePosixPath(text)) != text:
        return f"{text!r}: write an absolute path of letters, digits and the characters . _ + - /"
    return ""


def one_of(*names: str) -> Callable[[Facts, Given, str], str]:
    """Return the check that a text is one of some names."""
    return lambda _facts, _given, text: "" if text in names else f"{text!r}: write one of {', '.join(names)}"


def local_passwords(facts: Facts, given: Given, text: str) -> str:
    """Return why the hub cannot be in the group shadow."""
    if wrong := yes_or_no(facts, given, text):
        return wrong
    if yes(text) and facts.groups is not None and "shadow" not in facts.groups:
        return "there is no group 'shadow' on this machine, and a unit that names it does not start"
    return ""


def yes_or_no(_facts: Facts, _given: Given, text: str) -> str:
    """Return what is wrong with a yes or no."""
    return "" if text.lower() in (*YES, *NO) else f"{text!r}: write yes or no"


def state_folder(facts: Facts, given: Given, text: str) -> str:
    """Return why a folder cannot be the hub's own."""
    if wrong := path(facts, given, text):
        return wrong
    if any(_is_in(text, folder) for folder in _OF_SYSTEM):
        return f"{text} is in a folder of the system; name one below /var/lib or /srv"
    if text in ("/home", "/opt", "/root", "/srv", "/var", "/var/lib"):
        return f"{text} is not the hub's alone; name a folder below it"
    taken = [what for folder, what in facts.folders.items() if _is_in(text, folder) or _is_in(folder, text)]
    return f"{text}: {taken[0]} is there" if taken else ""


def libexec(facts: Facts, given: Given, text: str) -> str:
    """Return why a folder cannot have the helpers: what the hub can write would run by sudo."""
    if wrong := path(facts, given, text):
        return wrong
    state = given.get("state_folder", "")
    settings = f"{PurePosixPath(text).parent / 'etc'}"
    if state and (_is_in(text, state) or _is_in(settings, state)):
        return f"{text}: the hub can write what is in its state folder, {state}; helpers are for root alone to write"
    return ""


def of_root(facts: Facts, given: Given, text: str) -> str:
    """Return why a folder cannot be one that root alone writes: what the hub can write, it could exchange."""
    if wrong := path(facts, given, text):
        return wrong
    state = given.get("state_folder", "")
    if state and (_is_in(text, state) or _is_in(state, text)):
        return f"{text}: the hub can write what is in its state folder, {state}; name a folder of root's"
    return ""


def node_images(facts: Facts, given: Given, text: str) -> str:
    """Return why nodes cannot fetch images to a folder."""
    if wrong := path(facts, given, text):
        return wrong
    store = given.get("image_store", "")
    if _is_in(text, store) or _is_in(store, text):
        return f"{text}: that is the store, {store}; name a folder on the nodes' own disks"
    return ""


def _is_in(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def claimed(name: str, text: str) -> tuple[int, ...]:
    """Return the ports that an answer stands for: the services have one each."""
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        return ()
    return tuple(range(int(text), int(text) + (3 if name == "services_port" else 1)))


def port(name: str) -> Callable[[Facts, Given, str], str]:
    """Return the check of a port: in the range that needs no rights, and nobody else's here."""

    def check(facts: Facts, given: Given, text: str) -> str:
        wanted = claimed(name, text)
        if not wanted or not 1024 <= wanted[0] <= wanted[-1] <= 65535:
            return f"{text!r}: write a port from 1024 to 65535"
        ours = {number: each for each in PORTS for number in claimed(each, given.get(each, ""))}
        for number in wanted:
            if taken := ours.get(number) or facts.ports.get(number):
                return f"{number}: {taken} is that port already"
        return ""

    return check


def address(_facts: Facts, _given: Given, text: str) -> str:
    """Return why nodes cannot reach an address."""
    try:
        found = ip_address(text)
    except ValueError:
        return "" if HOST.fullmatch(text) else f"{text!r} is neither an address nor the name of a machine"
    return f"{text} stands for every address; name the one that nodes reach" if found.is_unspecified else ""


def user(facts: Facts, given: Given, text: str) -> str:
    """Return why the hub cannot run as a user."""
    if wrong := like(_USER, "a user's name has lower-case letters, digits, - and _")(facts, given, text):
        return wrong
    if text == "root":
        return "a hub that is root can do everything on this machine; name a user of its own (useradd --system)"
    return _known_user(facts, text)


def person(facts: Facts, given: Given, text: str) -> str:
    """Return why a user cannot start the test sessions."""
    if wrong := like(_PERSON, "a user's name has letters, digits and . _ @ -")(facts, given, text):
        return wrong
    if wrong := _known_user(facts, text):
        return wrong
    theirs = given.get("group", "")
    if facts.members is not None and theirs and (text, theirs) not in facts.members:
        return f"{text} is not in the group {theirs}, so no session of theirs starts; name a member"
    return ""


def _known_user(facts: Facts, text: str) -> str:
    if facts.users is not None and text not in facts.users:
        return f"there is no user {text!r} on this machine; the same user is needed here and on Slurm's controller"
    return ""


def group(facts: Facts, given: Given, text: str) -> str:
    """Return what is wrong with a group."""
    rule = "a group's name has letters, digits and . _ - (others have to be quoted in sudoers: write that file by hand)"
    if wrong := like(_GROUP, rule)(facts, given, text):
        return wrong
    if facts.groups is not None and text not in facts.groups:
        return f"there is no group {text!r} on this machine (getent group {text})"
    return ""


def partitions(facts: Facts, _given: Given, text: str) -> str:
    """Return which partitions there are not."""
    names = [each.name for each in facts.partitions]
    if not words(text):
        return "name at least one partition"
    return "; ".join(nearest(name, names, "partition") for name in words(text) if name not in names)


def submit_via(facts: Facts, given: Given, text: str) -> str:
    """Return why jobs cannot be submitted so."""
    if wrong := one_of("sudo", "rest")(facts, given, text):
        return wrong
    if not facts.sudo:
        return "sudo is not on this machine; both ways need it, for one helper with one rule (apt install sudo)"
    if text == "rest" and not facts.jwt_key:
        return (
            "Slurm accepts no tokens: AuthAltTypes=auth/jwt and AuthAltParameters=jwt_key=… in slurm.conf; or use sudo"
        )
    return ""


def container_runtime(facts: Facts, given: Given, text: str) -> str:
    """Return why sessions do not start by a container runtime."""
    if text not in RUNTIMES:
        return nearest(text, RUNTIMES, "container runtime")
    kind = image_format(given.get("image", ""))
    if kind not in RUNTIMES[text].formats:
        fits = ", ".join(name for name, each in RUNTIMES.items() if kind in each.formats)
        return f"{text} does not run images of the format {kind}; these do: {fits}"
    lacking = sorted(name for name, found in facts.runtimes.items() if text not in found)
    return f"{text} is not on the nodes of {', '.join(lacking)}" if lacking else ""
