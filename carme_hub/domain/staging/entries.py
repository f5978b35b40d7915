"""What a session asks to have copied: places, names in its scratch folder, and the size of that. Pure.

In a form or on the command line an entry is a line ``SOURCE -> TARGET``; in REST it is ``{"source", "target"}``. A
place is an absolute path on a file system that nodes share, or ``NAME:PATH`` of the user's own rclone. A name in
scratch is relative. On the node all copying is done with the user's rights alone, whatever is asked for.

A companion and a batch job of ``--stage`` have the entries of their session, and the name of a folder: what each of
their nodes leaves is below the target in ``RUN/NODE-JOB``, since several nodes have the same names in scratch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carme_hub.errors import ProfileNotAllowed

#: User options; each is a text of lines, the last one a number.
STAGE_IN, STAGE_OUT, STAGE_MOUNT, SCRATCH_GIB = "stage_in", "stage_out", "stage_mount", "scratch_gib"
STAGING_KEYS = (STAGE_IN, STAGE_OUT, STAGE_MOUNT, SCRATCH_GIB)
ARROW = " -> "
#: In a request's ``stage``: the folder of its results below the targets; a session has none.
RUN = "run"
MOST_ENTRIES, LONGEST = 16, 1024
#: A remote of rclone by its name in the user's settings; "," and a ":" in front would carry settings in the name.
_REMOTE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,63}:[^\x00-\x1f]*")
#: Folders of a node that end with it or with the job, and those of its kernel.
_OF_NODES = ("/tmp", "/var/tmp", "/run", "/proc", "/sys", "/dev")  # noqa: S108  named, not used

_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")

Entry = dict[str, str]


def run_folder(name: str) -> str:
    """Return the name of the folder below the targets for the results of a run."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", name).strip(".-")[:64] or "run"


@dataclass(frozen=True, slots=True)
class ScratchOffer:
    """What the site offers: the most GiB of scratch for a session, and how much one gets that names no number."""

    max_gib: int
    default_gib: int


def lines(entries: Sequence[Mapping[str, str]]) -> str:
    """Return entries as the lines of a user option."""
    return "\n".join(f"{each['source']}{ARROW}{each.get('target', '')}" for each in entries)


def flat_options(stage: object) -> dict[str, str | int]:
    """Return the user options of REST's ``{"in": […], "out": […], "scratch_gib": 20}``.

    Raises:
        ProfileNotAllowed: it is something else.
    """
    if not isinstance(stage, Mapping) or not set(stage) <= {"in", "out", "mount", SCRATCH_GIB}:
        raise _bad('stage is {"in": [{"source": …, "target": …}], "out": […], "scratch_gib": NUMBER}.')
    found: dict[str, str | int] = {}
    for key, option in (("in", STAGE_IN), ("out", STAGE_OUT), ("mount", STAGE_MOUNT)):
        entries = stage.get(key, [])
        if not isinstance(entries, Sequence) or isinstance(entries, str) or not all(map(_is_entry, entries)):
            raise _bad(f'stage.{key} is a list of {{"source": TEXT, "target": TEXT}}, each text on one line.')
        if entries:
            found[option] = lines(entries)
    size = stage.get(SCRATCH_GIB, "")
    if size != "":
        if type(size) is not int:
            raise _bad("stage.scratch_gib is a whole number of GiB.")
        found[SCRATCH_GIB] = size
    return found


def _is_entry(value: object) -> bool:
    if not isinstance(value, Mapping) or not {"source"} <= set(value) <= {"source", "target"}:
        return False
    texts = [value["source"], value.get("target", "")]
    return all(isinstance(text, str) and ARROW not in text and text.isprintable() for text in texts)


def _bad(message: str) -> ProfileNotAllowed:
    return ProfileNotAllowed(message, reason="bad-options")


def entries_of(text: str, *, way: str) -> tuple[list[Entry], str]:
    """Return the entries of a user option, and what is wrong with the first that is, "" for nothing.

    Args:
        way: "in", "out", or "mount" for folders of object storage.
    """
    found: list[Entry] = []
    for line in text.replace("\r", "\n").split("\n"):
        if not line.strip():
            continue
        source, _, target = (part.strip() for part in f"{line} ".partition(ARROW))
        entry, wrong = entry_of(source, target, way=way)
        if wrong:
            return [], f"“{line.strip()[:80]}”: {wrong}"
        found.append(entry)
    if len(found) > MOST_ENTRIES:
        return [], f"at most {MOST_ENTRIES} lines; copy the folder that has them all"
    targets = [each["target"] for each in found]
    if len(set(targets)) < len(targets):
        return [], f"two lines have the target {next(t for t in targets if targets.count(t) > 1)!r}"
    return found, ""


def entry_of(source: str, target: str, *, way: str) -> tuple[Entry, str]:
    """Return one entry, and what is wrong with it."""
    place, name = (target, source) if way == "out" else (source, target)
    if not place:
        return {}, f"write SOURCE{ARROW}TARGET" if way == "out" else "the source is missing"
    if wrong := place_problem(place):
        return {}, wrong
    if way == "out" and not place.rpartition(":")[2].strip("/"):
        return (
            {},
            f"name a folder below {place}, such as {place.rstrip('/')}{'' if place.endswith(':') else '/'}results",
        )
    if way == "mount" and place.startswith("/"):
        return {}, "a path is there already; name what your rclone knows, as NAME:PATH"
    if way != "out" and not name:
        name = place.rstrip("/").rpartition("/")[2].rpartition(":")[2] or "data"
    if wrong := name_problem(name):
        return {}, wrong
    if way == "mount" and not _FOLDER.fullmatch(name):
        return {}, f"{name!r} is to be one name, of letters, digits and . _ -"
    return ({"source": name, "target": place} if way == "out" else {"source": place, "target": name}), ""


def place_problem(place: str) -> str:
    """Return what is wrong with a place outside of scratch, "" for nothing."""
    if len(place) > LONGEST or not place.isprintable():
        return f"at most {LONGEST} characters, on one line"
    if not place.startswith("/"):
        if _REMOTE.fullmatch(place):
            return ""
        return "give an absolute path, or NAME:PATH with a remote of your rclone (`rclone listremotes`)"
    if ".." in place.split("/"):
        return "a path without “..”, please"
    if any(place == top or place.startswith(top + "/") for top in _OF_NODES):
        return f"{place} is on the node itself, not on a file system that outlives the job"
    return ""


def name_problem(name: str) -> str:
    """Return what is wrong with a name in scratch, "" for nothing."""
    if not name or len(name) > LONGEST or not name.isprintable():
        return f"a name in your scratch folder has 1 to {LONGEST} characters, on one line"
    if name.startswith(("/", "~")) or ".." in name.split("/"):
        return f"{name!r} is to be a name below your scratch folder, such as data or run/checkpoints"
    return ""


def stage_of(
    options: Mapping[str, object], offer: ScratchOffer | None
) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Return what to copy as the request has it, {} for nothing, and the problems: (user option, message).

    Args:
        offer: None = the site offers no scratch.
    """
    asked = {key: options[key] for key in STAGING_KEYS if options.get(key, "") not in ("", None)}
    if not asked:
        return {}, []
    if offer is None:
        return {}, [(next(iter(asked)), "This site copies no data for sessions: its nodes have no scratch folders.")]
    problems: list[tuple[str, str]] = []
    found: dict[str, object] = {}
    for key, way, label in (
        (STAGE_IN, "in", "Data to copy in"),
        (STAGE_OUT, "out", "Results to copy out"),
        (STAGE_MOUNT, "mount", "Object storage as folders"),
    ):
        entries, wrong = entries_of(str(asked.get(key, "")), way=way)
        if wrong:
            problems.append((key, f"{label}: {wrong}."))
        if entries or way != "mount":
            found[way] = entries
    size = str(asked.get(SCRATCH_GIB, offer.default_gib))
    if not re.fullmatch(r"[1-9][0-9]{0,5}", size) or int(size) > offer.max_gib:
        problems.append((SCRATCH_GIB, f"Scratch: 1 to {offer.max_gib} GiB; you asked for “{size[:20]}”."))
        size = str(offer.default_gib)
    found[SCRATCH_GIB] = int(size)
    return ({} if problems else found), problems
