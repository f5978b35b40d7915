"""Parse Slurm's notations: TRES and GRES strings, host lists, states, times. Pure.

Each function accepts what Slurm 22.05 to 26.05 print, raises ``ValueError`` for anything else, and treats the values
for "nothing" (``N/A``, ``(null)``, ``Unknown`` …) as nothing. The clients in ``carme_hub.slurm`` call them.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from functools import lru_cache

from .jobs import Phase
from .resources import NO_GPUS, SHARD, Gpus

#: The type of GPUs that were requested without a type. Our jobs always name one; other people's jobs may not.
ANY_TYPE = "gpu"

_NO_VALUE = frozenset({"", "N/A", "n/a", "(null)", "NONE", "None", "Unknown", "UNKNOWN", "NOT_SET", "UNLIMITED"})
_MAX_HOSTS = 100_000

_PHASES = {
    Phase.WAITING: "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT POWER_UP_NODE",
    Phase.ACTIVE: "RUNNING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING",
    Phase.ENDING: "COMPLETING",
    Phase.TERMINAL: "COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY",
}
_PHASE_OF = {word: phase for phase, words in _PHASES.items() for word in words.split()}


def phase_of(state: str) -> Phase:
    """Return the phase of a full state; of ``CANCELLED by 1000`` the first word counts."""
    return _PHASE_OF.get(state.split(" ", 1)[0], Phase.UNKNOWN)


def time_of(text: str) -> float:
    """Return an epoch time from ``%s`` or from Slurm's standard form in UTC; 0 for none."""
    if text in _NO_VALUE:
        return 0.0
    if _is_number(text):
        return float(text)
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()


@lru_cache(maxsize=4096)
def minutes_of(text: str) -> int:
    """Return minutes from ``days-hours:minutes:seconds``, rounded up; 0 for no or an unknown limit."""
    if text in _NO_VALUE or text in {"Partition_Limit", "INVALID"}:
        return 0
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(f"not a time limit: {text!r}")
    days, *clock = match.groups()
    numbers = [int(n) for n in clock if n is not None]
    if days is not None:
        numbers += [0] * (3 - len(numbers))
    else:
        numbers = [0] * (3 - len(numbers)) + numbers
    hours, minutes, seconds = numbers
    return int(days or 0) * 1440 + hours * 60 + minutes + (seconds > 0)


def exit_of(text: str) -> tuple[int, int] | None:
    """Return exit status and signal from ``3:0`` (sacct) or from a raw wait status (squeue)."""
    if text in _NO_VALUE:
        return None
    if ":" in text:
        status, _, signal = text.partition(":")
        return int(status), int(signal)
    raw = int(text)
    return (raw >> 8) & 0xFF, raw & 0x7F


def gpus_of_tres(text: str) -> Gpus:
    """Return the GPUs in a TRES string: ``cpu=1,gres/gpu=2,gres/gpu:a100=2``; of several types the largest one."""
    total, typed = _tres_counts(text, "gres/gpu")
    return _dominant_type(total, typed) or next(iter(typed_gpus_of_tres(text)), NO_GPUS)


def typed_gpus_of_tres(text: str) -> tuple[Gpus, ...]:
    """Return the GPUs in a TRES string, one value for each type, sorted by type; shards if it names no GPUs.

    A type is named only if the site lists it in AccountingStorageTRES; the rest has any type. Shards are parts of the
    same GPUs, so only the GPUs count in a string that names both (all of a node's GRES).
    """
    total, typed = _tres_counts(text, "gres/gpu")
    unnamed = max(0, total - typed.total())
    if unnamed:
        typed[ANY_TYPE] += unnamed
    found = tuple(Gpus(type_, count) for type_, count in sorted(typed.items()) if count)
    shards = shards_of_tres(text)
    return found or ((Gpus(SHARD, shards),) if shards else ())


def shards_of_tres(text: str) -> int:
    """Return the number of shards in a TRES string: ``gres/shard=2``, possibly with ``gres/shard:a100=2``."""
    total, typed = _tres_counts(text, f"gres/{SHARD}")
    return max(total, typed.total())


def gpus_of_gres(text: str, name: str = "gpu") -> dict[str, int]:
    """Return GPU type to count from a GRES string: ``gpu:a100:4(S:0-1),shard:16``, ``gres:gpu:2``.

    Args:
        name: ``shard`` for the shards in place of the GPUs.
    """
    found: Counter[str] = Counter()
    if text in _NO_VALUE:
        return {}
    for part in _split(text):
        words = re.sub(r"\(.*\)", "", part).removeprefix("gres:").removeprefix("gres/").replace("=", ":").split(":")
        if words[0] != name:
            continue
        rest = words[1:]
        count = 1
        if rest and _is_number(rest[-1]):
            count = int(rest.pop())
        found[":".join(rest) or ANY_TYPE] += count
    return dict(found)


@lru_cache(maxsize=4096)
def job_gpus(alloc: str, per_node: str, per_job: str, per_task: str, nodes: int) -> Gpus:
    """Return the GPUs of a job from squeue's fields.

    The TRES string has types only if the site lists them in AccountingStorageTRES; the request has its own.
    """
    counted = gpus_of_tres(alloc)
    if counted and counted.type != ANY_TYPE:
        return counted
    for text, times in ((per_node, max(1, nodes)), (per_job, 1), (per_task, 1)):
        typed = Counter({t: n * times for t, n in gpus_of_gres(text).items()})
        if typed:
            asked = _dominant_type(sum(typed.values()), typed)
            return Gpus(asked.type, counted.count) if counted else asked
    return counted


def gpus_in_use(gres: str, used: str) -> dict[str, int]:
    """Return GPU type to GPUs that a job cannot get now, from a node's ``Gres`` and ``GresUsed``.

    A GPU of which a shard is in use is not free for a whole-GPU job, so it counts as used.
    """
    result = Counter(gpus_of_gres(used))
    taken: set[int] = set()
    shared: dict[str, set[int]] = {}
    for part in _split(used) if used not in _NO_VALUE else ():
        words = re.sub(r"\(.*\)", "", part).split(":")
        if words[0] == "gpu":
            taken |= _indexes(part)
        elif words[0] == "shard":
            shared.setdefault(words[1] if len(words) > 2 else "", set()).update(_indexes(part))
    types = list(gpus_of_gres(gres))
    for type_, indexes in shared.items():
        owner = type_ if type_ in types else (types[0] if types else ANY_TYPE)
        result[owner] += len(indexes - taken)
    return {type_: count for type_, count in result.items() if count}


@lru_cache(maxsize=4096)
def hosts_of(text: str) -> tuple[str, ...]:
    """Return the names in a host list, in its order: ``node[1-3,07],login`` and ``r[1-2]n[01-02]``.

    The result is that of ``scontrol show hostnames``. docs/explanation/libraries.md says why no library does it.
    """
    if text in _NO_VALUE:
        return ()
    names: list[str] = []
    for part in _split(text):
        names.extend(_expand(part))
        if len(names) > _MAX_HOSTS:
            raise ValueError("a host list of more than 100,000 names")
    return tuple(names)


def _tres_counts(text: str, wanted: str) -> tuple[int, Counter[str]]:
    """Return the count of a TRES name without a type, and the counts by type."""
    total, typed = 0, Counter[str]()
    for part in text.split(","):
        name, _, count = part.partition("=")
        if name == wanted:
            total = int(count)
        elif name.startswith(f"{wanted}:"):
            typed[name.removeprefix(f"{wanted}:")] += int(count)
    return total, typed


def _dominant_type(total: int, typed: Counter[str]) -> Gpus:
    """Return one value for GPUs that may be of several types: the type with the most GPUs."""
    typed = +typed
    if not typed:
        return Gpus(ANY_TYPE, total) if total else NO_GPUS
    type_, count = typed.most_common(1)[0]
    return Gpus(type_, count if len(typed) > 1 else max(count, total))


def _is_number(text: str) -> bool:
    """Return whether a text consists of ASCII digits; ``"²".isdigit()`` is true as well."""
    return text.isascii() and text.isdigit()


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts: list[str] = []
    depth = start = 0
    for at, letter in enumerate(text):
        if letter in "[(":
            depth += 1
        elif letter in "])":
            depth -= 1
            if depth < 0:
                raise ValueError(f"brackets do not match: {text!r}")
        elif letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise ValueError(f"brackets do not match: {text!r}")
    parts.append(text[start:])
    return [part for part in parts if part]


def _expand(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, closing, tail = rest.partition("]")
    if not closing:
        raise ValueError(f"brackets do not match: {part!r}")
    tails = _expand(tail) if tail else [""]
    names: list[str] = []
    for piece in inside.split(","):
        low, dash, high = piece.partition("-")
        if not _is_number(low) or (dash and not _is_number(high)):
            raise ValueError(f"not a host list: {part!r}")
        numbers = range(int(low), int(high if dash else low) + 1)
        if not numbers:
            raise ValueError(f"not a host list: {part!r}")
        if len(numbers) * len(tails) + len(names) > _MAX_HOSTS:
            raise ValueError("a host list of more than 100,000 names")
        names += [f"{head}{number:0{len(low)}d}{end}" for number in numbers for end in tails]
    return names


def _indexes(part: str) -> set[int]:
    """Return the GPU indexes in use: ``(IDX:0,2-3)``, ``(IDX:N/A)``, or per GPU ``(0/4,1/4)`` (24.11's shards)."""
    match = re.search(r"\((?:IDX:)?(.*)\)", part)
    inside = match.group(1) if match else ""
    if not inside or inside == "N/A" or inside.startswith("S:"):
        return set()
    if "/" in inside:
        return {at for at, piece in enumerate(inside.split(",")) if piece.split("/")[0] not in ("", "0")}
    found: set[int] = set()
    for piece in inside.split(","):
        low, _, high = piece.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return found
