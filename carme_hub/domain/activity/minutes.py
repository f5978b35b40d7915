"""Minutes of what a job used on a node, as its reporter measured them, and the sums of them. Pure.

``carme_hub/node/minutes.py`` makes the minutes. None is *unknown*, and is never counted as 0: a sum knows of how many
seconds it knows something.

    hour = total(minutes)
    hour.gpus[0].utilisation    # percent, on average over the seconds in which it was known
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from carme_hub.errors import Refused

MINUTE, HOUR = 60, 3600
#: Seconds by which the clocks of nodes and of the service may differ.
CLOCKS_DIFFER = 120


class MinutesRefused(Refused):
    """Minutes that cannot be what a reporter measured."""

    reason = "wrong-minutes"


@dataclass(frozen=True, slots=True)
class GpuMinute:
    """One GPU in a minute.

    Attributes:
        utilisation: percent, on average; utilisation_most: the most. memory: MiB, the most. power: W, on average.
        temperature: °C, the most. throttled: seconds. ecc: new uncorrected errors. xids: numbers of critical errors.
    """

    utilisation: float | None = None
    utilisation_most: int | None = None
    memory: int | None = None
    power: float | None = None
    temperature: int | None = None
    throttled: int | None = None
    ecc: int | None = None
    xids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Minute:
    """A minute of a job on one node.

    Attributes:
        at: its beginning, UTC epoch seconds. seconds: of it that were measured. cpu: percent of one CPU, on average.
        memory: MiB, the most. read, written: KiB of disks.
        kernels, terminals, runs: the most that were at work at one moment: kernels that compute, terminals with a
            program in the foreground, live runs.
    """

    at: int
    seconds: int
    cpu: float | None = None
    memory: int | None = None
    read: int | None = None
    written: int | None = None
    gpus: tuple[GpuMinute, ...] = ()
    kernels: int | None = None
    terminals: int | None = None
    runs: int | None = None


@dataclass(frozen=True, slots=True)
class GpuTotal:
    """One GPU in some minutes.

    Attributes:
        used: percent times seconds. known: seconds in which that was known. most: percent. memory: MiB, the most.
        energy: joules; throttled: seconds; ecc: errors; xids: how often, by their number as text.
    """

    used: int = 0
    known: int = 0
    most: int | None = None
    memory: int | None = None
    energy: int | None = None
    temperature: int | None = None
    throttled: int | None = None
    ecc: int | None = None
    xids: Mapping[str, int] | None = None

    @property
    def utilisation(self) -> float | None:
        """Percent on average over the time in which it is known; None = it never was."""
        return self.used / self.known if self.known else None


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of some minutes of a job on one node.

    Attributes:
        cpu: percent times seconds; cpu_known: seconds in which that was known; cpu_most: percent in the busiest minute.
    """

    seconds: int = 0
    cpu: int = 0
    cpu_known: int = 0
    cpu_most: int | None = None
    memory: int | None = None
    read: int | None = None
    written: int | None = None
    gpus: tuple[GpuTotal, ...] = ()

    @property
    def cpus(self) -> float | None:
        """CPUs that were used on average, in the time in which that is known."""
        return self.cpu / self.cpu_known / 100 if self.cpu_known else None


def total(minutes: Iterable[Minute]) -> Total:
    """Return the sum of minutes."""
    found = Total()
    for minute in minutes:
        found = add(found, _of(minute))
    return found


def _of(minute: Minute) -> Total:
    seconds, known = minute.seconds, minute.cpu is not None
    return Total(
        seconds=seconds,
        cpu=round((minute.cpu or 0) * seconds),
        cpu_known=seconds if known else 0,
        cpu_most=None if minute.cpu is None else round(minute.cpu),
        memory=minute.memory,
        read=minute.read,
        written=minute.written,
        gpus=tuple(_of_gpu(gpu, seconds) for gpu in minute.gpus),
    )


def _of_gpu(gpu: GpuMinute, seconds: int) -> GpuTotal:
    return GpuTotal(
        used=round((gpu.utilisation or 0) * seconds),
        known=0 if gpu.utilisation is None else seconds,
        most=gpu.utilisation_most,
        memory=gpu.memory,
        energy=None if gpu.power is None else round(gpu.power * seconds),
        temperature=gpu.temperature,
        throttled=gpu.throttled,
        ecc=gpu.ecc,
        xids={str(each): gpu.xids.count(each) for each in gpu.xids} or None,
    )


def add(one: Total, other: Total) -> Total:
    """Return the sum of two sums of the same job on the same node."""
    count = max(len(one.gpus), len(other.gpus))
    pairs = zip(_padded(one.gpus, count), _padded(other.gpus, count), strict=True)
    return Total(
        seconds=one.seconds + other.seconds,
        cpu=one.cpu + other.cpu,
        cpu_known=one.cpu_known + other.cpu_known,
        cpu_most=_most(one.cpu_most, other.cpu_most),
        memory=_most(one.memory, other.memory),
        read=_plus(one.read, other.read),
        written=_plus(one.written, other.written),
        gpus=tuple(_add_gpu(left, right) for left, right in pairs),
    )


def _padded(gpus: Sequence[GpuTotal], count: int) -> list[GpuTotal]:
    return [*gpus, *(GpuTotal() for _ in range(count - len(gpus)))]


def _add_gpu(one: GpuTotal, other: GpuTotal) -> GpuTotal:
    xids = dict(one.xids or {})
    for name, count in (other.xids or {}).items():
        xids[name] = xids.get(name, 0) + count
    return GpuTotal(
        used=one.used + other.used,
        known=one.known + other.known,
        most=_most(one.most, other.most),
        memory=_most(one.memory, other.memory),
        energy=_plus(one.energy, other.energy),
        temperature=_most(one.temperature, other.temperature),
        throttled=_plus(one.throttled, other.throttled),
        ecc=_plus(one.ecc, other.ecc),
        xids=xids or None,
    )


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _plus(one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return sum(known) if known else None


def new_minutes(stored: Iterable[Minute], sent: Iterable[Minute]) -> list[Minute]:
    """Return the sent minutes that are not stored: a reporter sends a minute again if it did not get the answer."""
    known = {minute.at for minute in stored}
    found = []
    for minute in sent:  # one that waits for the database is perhaps sent again before it is stored
        if minute.at not in known:
            known.add(minute.at)
            found.append(minute)
    return found


def check_times(
    minutes: Sequence[Minute], sent_at: float, now: float, began: float, ended: float, kept_seconds: float
) -> None:
    """Refuse minutes that cannot be of a job.

    Args:
        sent_at: the reporter's clock when it sent them. now: the service's, UTC epoch seconds.
        began, ended: when the session was created, and when it ended; ended = 0: not yet.
        kept_seconds: how long minutes are kept; older ones cannot be told from those that were counted already.

    Raises:
        MinutesRefused: with what is wrong.
    """
    if abs(sent_at - now) > CLOCKS_DIFFER:
        ahead = sent_at > now
        raise MinutesRefused(
            f"The clock of the node is {round(abs(sent_at - now))} s {'ahead of' if ahead else 'behind'} the hub's. "
            "Set it by NTP: its minutes cannot be placed."
        )
    for minute in minutes:
        if minute.at % MINUTE:
            raise MinutesRefused(f"{minute.at} is not the beginning of a minute.")
        if minute.at > now + CLOCKS_DIFFER or (ended and minute.at > ended + CLOCKS_DIFFER):
            raise MinutesRefused(f"The minute {minute.at} is after the job's end, or in the future.")
        if minute.at < began - CLOCKS_DIFFER - MINUTE:
            raise MinutesRefused(f"The minute {minute.at} is before the job's begin.")
        if minute.at < now - kept_seconds + HOUR:
            raise MinutesRefused(f"The minute {minute.at} is too old to be counted.")
    if len({minute.at for minute in minutes}) < len(minutes):
        raise MinutesRefused("A minute is twice in the request.")


def minute_to_json(minute: Minute) -> dict[str, Any]:
    """Return a minute as JSON, without what is unknown."""
    found = {name: value for name, value in asdict(minute).items() if value is not None and name != "gpus"}
    gpus = ({name: value for name, value in asdict(gpu).items() if value not in (None, ())} for gpu in minute.gpus)
    return {**found, "gpus": [{**gpu, **({"xids": list(gpu["xids"])} if "xids" in gpu else {})} for gpu in gpus]}


def minute_from_json(value: Mapping[str, Any]) -> Minute:
    """Return a minute from its JSON; raise TypeError or ValueError where it is none."""
    gpus = tuple(GpuMinute(**{**gpu, "xids": tuple(gpu.get("xids", ()))}) for gpu in value.get("gpus", ()))
    return Minute(**{**value, "gpus": gpus})


def total_to_json(value: Total) -> dict[str, Any]:
    """Return a sum as JSON."""
    found = asdict(value)
    return {**found, "gpus": list(found["gpus"])}


def total_from_json(value: Mapping[str, Any]) -> Total:
    """Return a sum from its JSON; raise TypeError or ValueError where it is none."""
    return Total(**{**value, "gpus": tuple(GpuTotal(**gpu) for gpu in value.get("gpus", ()))})
