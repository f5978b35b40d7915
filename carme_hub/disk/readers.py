"""One small reader for each kind of quota: the command that asks for one user, group or project, and its answer.

Each is a pair of pure functions: ``argv`` gives the command's arguments, ``parse`` reads what it prints, and raises
``ValueError`` where that is no answer: unknown is never zero. The forms that are asked for are those for programs,
where the command has such a form.

| reader | command | of |
|---|---|---|
| ``xfs`` | ``xfs_quota -x -c 'report …' MOUNT`` | user, group, project |
| ``quota`` | ``quota -vwp -u NAME`` (ext4, NFS by rpc.rquotad) | user, group, project (its number) |
| ``lustre`` | ``lfs quota -q -u NAME MOUNT`` | user, group, project (its number) |
| ``gpfs`` | ``mmlsquota -Y -u NAME DEVICE`` | user, group, project (a fileset) |
| ``zfs`` | ``zfs get -Hp …`` | user, group, project (a dataset below the named one) |
| ``btrfs`` | ``btrfs qgroup show -re --raw -f FOLDER`` | project (a subvolume) |
| ``disk`` | ``stat -f FOLDER`` | everybody on the file system |

``disk`` is a command like the others, so that a file server that hangs costs the hub a process that is ended, and no
thread for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from carme_hub.domain.disk_use import DAY, Use

KIB = 1024
#: Whose use is asked for.
USER, GROUP, PROJECT = "user", "group", "project"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for: ``of`` and ``name`` say whose, ``file_system`` where; ``path`` is shown."""

    path: str
    file_system: str
    name: str
    of: str = USER


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of quota."""

    argv: Callable[[Question], Sequence[str]]
    parse: Callable[[str, Question, float], Use]
    of: tuple[str, ...] = (USER, GROUP, PROJECT)


def _no_answer(command: str, question: Question) -> ValueError:
    return ValueError(f"{command} says nothing of {question.of} {question.name!r} on {question.file_system}")


def _count(text: str) -> int:
    """Return a number, which may be marked: ``104*`` is above the limit, ``[104]`` not exact (lfs-quota(1))."""
    return int(text.strip("[]*"))


def _limit(text: str, unit: int = 1) -> int | None:
    """Return a limit; None where there is none: 0 in most commands."""
    if text in ("0", "-", "none", ""):
        return None
    return _count(text) * unit


_SPANS = {"w": 7 * DAY, "d": DAY, "h": 3600, "m": 60, "s": 1}


def grace(text: str, now: float) -> float | None:
    """Return when a grace time ends, from what a command says: ``6d23h59m``, ``6 days``, ``23:12``, ``expired``."""
    text = text.strip(" []-").lower()
    if text in ("", "none"):
        return None
    if text in ("expired", "no time"):
        return now
    if match := re.fullmatch(r"(\d+):(\d\d)(?::\d\d)?", text):
        return now + int(match[1]) * 3600 + int(match[2]) * 60
    if found := re.findall(r"(\d+)\s*(w|d|h|m|s)", text):
        return now + sum(int(count) * _SPANS[unit] for count, unit in found)
    return None


# -- xfs ---------------------------------------------------------------------------------------------------------------


def _xfs_argv(question: Question) -> list[str]:
    flag = {USER: "-u", GROUP: "-g", PROJECT: "-p"}[question.of]
    # The whole report: `quota` prints nothing for some users and devices that have a limit, and wraps long names.
    return ["xfs_quota", "-x", "-c", f"report {flag} -N -b -i", question.file_system]


_XFS = r"\s+(\d+)\s+(\d+)\s+(\d+)\s+\d+\s+(\[[^\]]*\])"


def _xfs_parse(text: str, question: Question, now: float) -> Use:
    match = re.search(rf"^{re.escape(question.name)}{_XFS}(?:{_XFS})?", text, re.MULTILINE)
    if match is None:
        raise _no_answer("xfs_quota", question)  # it exits with 0 in any case
    return Use(
        question.path,
        int(match[1]) * KIB,
        soft=_limit(match[2], KIB),
        limit=_limit(match[3], KIB),
        grace_ends=grace(match[4], now),
        files=_limit_or_zero(match[5]),
        soft_files=_limit(match[6] or ""),
        file_limit=_limit(match[7] or ""),
    )


def _limit_or_zero(text: str | None) -> int | None:
    return None if text is None else int(text)


# -- quota(1) ----------------------------------------------------------------------------------------------------------


def _quota_argv(question: Question) -> list[str]:
    flag = {USER: "-u", GROUP: "-g", PROJECT: "-P"}[question.of]
    if question.of != PROJECT and (question.name.isdigit() or question.name.lower().startswith("0x")):
        # quota(1) takes it for the number of a user or group: the figures would be those of somebody else.
        raise ValueError(f"quota cannot be asked of {question.of} {question.name!r}, whose name it reads as a number")
    return ["quota", "-v", "-w", "-p", "--show-mntpoint", "--hide-device", flag, "--", question.name]


def _quota_parse(text: str, question: Question, now: float) -> Use:  # noqa: ARG001  its grace times are absolute
    for line in text.splitlines():
        words = line.split()
        # Names of file systems may have spaces, numbers have none: the last eight words are the numbers.
        if len(words) < 9 or " ".join(words[:-8]) != question.file_system:
            continue
        return _use_of_row(question, words[-8:], lambda ends: float(ends) if ends.isdigit() and int(ends) else None)
    raise _no_answer("quota", question)


def _use_of_row(question: Question, row: Sequence[str], end: Callable[[str], float | None]) -> Use:
    """Return what eight columns say: used, soft, limit and grace time in KiB, and the same of files.

    Args:
        end: reads a grace time, as UTC epoch seconds; None = none is running.
    """
    used, soft, limit, ends, files, soft_files, file_limit, file_ends = row
    running = [each for each in (end(ends), end(file_ends)) if each is not None]
    return Use(
        question.path,
        _count(used) * KIB,
        soft=_limit(soft, KIB),
        limit=_limit(limit, KIB),
        grace_ends=min(running, default=None),
        files=_count(files),
        soft_files=_limit(soft_files),
        file_limit=_limit(file_limit),
    )


# -- Lustre ------------------------------------------------------------------------------------------------------------


def _lustre_argv(question: Question) -> list[str]:
    return [
        "lfs",
        "quota",
        "-q",
        {USER: "-u", GROUP: "-g", PROJECT: "-p"}[question.of],
        question.name,
        question.file_system,
    ]


def _lustre_parse(text: str, question: Question, now: float) -> Use:
    words = text.split()  # a long name of the file system has a line of its own
    for start, word in enumerate(words):
        row = words[start + 1 : start + 9]
        if word != question.file_system or len(row) < 8 or not re.fullmatch(r"\[?\d+\]?\*?", row[0]):
            continue
        return _use_of_row(question, row, lambda ends: grace(ends, now))
    raise _no_answer("lfs quota", question)


# -- GPFS (IBM Storage Scale) ------------------------------------------------------------------------------------------


def _gpfs_argv(question: Question) -> list[str]:
    return [
        "mmlsquota",
        "-Y",
        {USER: "-u", GROUP: "-g", PROJECT: "-j"}[question.of],
        question.name,
        question.file_system,
    ]


def _gpfs_parse(text: str, question: Question, now: float) -> Use:
    names: list[str] = []
    kind = {USER: "USR", GROUP: "GRP", PROJECT: "FILESET"}[question.of]
    found: Use | None = None
    for line in text.splitlines():
        words = [unquote(word) for word in line.split(":")]
        if words[2:3] == ["HEADER"]:
            names = words
            continue
        row = dict(zip(names, words, strict=False))
        if row.get("quotaType") != kind or row.get("name") != question.name or not row.get("blockUsage", "").isdigit():
            continue
        ends = [each for name in ("blockGrace", "filesGrace") if (each := grace(row.get(name, ""), now)) is not None]
        use = Use(
            question.path,
            int(row["blockUsage"]) * KIB,
            soft=_limit(row.get("blockQuota", ""), KIB),
            limit=_limit(row.get("blockLimit", ""), KIB),
            grace_ends=min(ends, default=None),
            files=_limit_or_zero(row.get("filesUsage") or None),
            soft_files=_limit(row.get("filesQuota", "")),
            file_limit=_limit(row.get("filesLimit", "")),
        )
        # A user has a row for each fileset: the fullest is what the user meets first.
        found = use if found is None or use.percent > found.percent else found
    if found is None:
        raise _no_answer("mmlsquota", question)
    return found


# -- ZFS ---------------------------------------------------------------------------------------------------------------


def _zfs_argv(question: Question) -> list[str]:
    if question.of == PROJECT:
        dataset = f"{question.file_system}/{question.name}" if question.name else question.file_system
        return ["zfs", "get", "-H", "-p", "-o", "property,value", "used,quota,refquota,referenced", dataset]
    who = f"@{question.name}"
    asked = ",".join(f"{question.of}{what}{who}" for what in ("used", "quota", "objused", "objquota"))
    return ["zfs", "get", "-H", "-p", "-o", "property,value", asked, question.file_system]


def _zfs_parse(text: str, question: Question, now: float) -> Use:  # noqa: ARG001  it knows no grace times
    rows = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    values = {name.partition("@")[0].removeprefix(question.of): value.strip() for name, value in rows.items()}
    if not values.get("used", "").isdigit():
        raise _no_answer("zfs", question)
    if question.of == PROJECT:
        of_all = Use(question.path, int(values["used"]), limit=_limit(values.get("quota", "")))
        own = values.get("referenced", "")
        if own.isdigit() and (least := _limit(values.get("refquota", ""))) is not None:
            without_snapshots = Use(question.path, int(own), limit=least)
            return max(of_all, without_snapshots, key=lambda use: use.percent)
        return of_all
    files = values.get("objused", "")
    return Use(
        question.path,
        int(values["used"]),
        limit=_limit(values.get("quota", "")),
        files=int(files) if files.isdigit() else None,
        file_limit=_limit(values.get("objquota", "")),
    )


# -- btrfs -------------------------------------------------------------------------------------------------------------


def _btrfs_argv(question: Question) -> list[str]:
    return ["btrfs", "qgroup", "show", "-r", "-e", "--raw", "-f", question.path]


def _btrfs_parse(text: str, question: Question, now: float) -> Use:  # noqa: ARG001  it knows no grace times
    found: list[Use] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 5 and re.fullmatch(r"\d+/\d+", words[0]) and words[1].isdigit() and words[2].isdigit():
            for used, limit in ((words[1], words[3]), (words[2], words[4])):
                found.append(Use(question.path, int(used), limit=_limit(limit)))
    if not found:
        raise _no_answer("btrfs qgroup", question)
    # Referenced and exclusive bytes may both have limits, and so may groups above: the fullest is met first.
    return max(found, key=lambda use: (use.percent, use.limit is not None, use.used))


# -- a whole file system -----------------------------------------------------------------------------------------------


def _disk_argv(question: Question) -> list[str]:
    return ["stat", "-f", "-c", "%b %f %a %S", "--", question.file_system]


def _disk_parse(text: str, question: Question, now: float) -> Use:  # noqa: ARG001  it has no grace times
    words = text.split()
    if len(words) != 4 or not all(word.isdigit() for word in words):
        raise _no_answer("stat", question)
    total, free, available, unit = map(int, words)
    return of_file_system(question.path, (total * unit, free * unit, available * unit))


READERS = {
    "xfs": Reader(_xfs_argv, _xfs_parse),
    "quota": Reader(_quota_argv, _quota_parse),
    "lustre": Reader(_lustre_argv, _lustre_parse),
    "gpfs": Reader(_gpfs_argv, _gpfs_parse),
    "zfs": Reader(_zfs_argv, _zfs_parse),
    "btrfs": Reader(_btrfs_argv, _btrfs_parse, (PROJECT,)),
    "disk": Reader(_disk_argv, _disk_parse),
}


def of_file_system(path: str, blocks: tuple[int, int, int]) -> Use:
    """Return the use of a whole file system.

    Args:
        blocks: its size, the free bytes for root, and those for users, as statvfs(3) counts them.
    """
    total, free, available = blocks
    used = total - free
    return replace(Use(path, used, limit=used + available), shared=True)
