"""How long a session with an image takes to start here, from what was measured, and what the form says of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

#: The newest measurements that count, and below how many of them nothing is said.
NEWEST, FEWEST = 30, 1
#: Bytes below which a fetch says nothing of the rate: opening and closing took most of its time.
LEAST_BYTES = 8 << 20
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class Held:
    """A node's copy of an image. Times are UTC epoch seconds.

    Attributes:
        at: since when the node has it. seconds, size: of its fetch, 0 = unknown. problem: why there is none.
    """

    node: str
    digest: str
    at: float = 0.0
    seconds: float = 0.0
    size: int = 0
    problem: str = ""

    @property
    def is_there(self) -> bool:
        """Whether the node has it."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class Fetching:
    """Whether an image has to be fetched before a session starts.

    Attributes:
        nodes: on how many nodes a session could start; there: how many of them have the image.
        seconds: what a fetch takes, 0 = not known. silent: how many of the nodes do not say what they have.
    """

    nodes: int
    there: int
    seconds: float = 0.0
    silent: int = 0

    @property
    def is_needed(self) -> bool:
        """Whether it must be fetched on every one of these nodes, as far as they say what they have."""
        return not self.there

    def sentence(self) -> str:
        """Return what the form says."""
        if self.nodes and self.there >= self.nodes:
            return "starts at once"
        needed = f"about {duration(self.seconds)}: has to be fetched" if self.seconds else "has to be fetched first"
        silent = f"{self.silent} node{' does' if self.silent == 1 else 's do'} not answer" if self.silent else ""
        if not self.there:
            return f"{needed} ({silent})" if silent else needed
        found = f"starts at once on {self.there} of {self.nodes} nodes"
        if self.there + self.silent >= self.nodes:
            return f"{found}, {silent}"
        return f"{found}, elsewhere {needed}" + (f" ({silent})" if silent else "")

    def suffix(self) -> str:
        """Return what a list of images adds to a name; "" where it starts at once."""
        if not self.is_needed:
            return ""
        return f"about {duration(self.seconds)} to fetch" if self.seconds else "has to be fetched"


def measured(seconds: Sequence[float]) -> float:
    """Return the usual time of starts, the newest first; 0 = not known."""
    some = [each for each in seconds[:NEWEST] if each > 0]
    return median(some) if len(some) >= FEWEST else 0.0


def bytes_per_second(fetched: Iterable[Held]) -> float:
    """Return the usual rate at which nodes fetch, of fetches that say something; 0 = not known."""
    rates = [each.size / each.seconds for each in fetched if each.seconds > 0 and each.size >= LEAST_BYTES]
    return median(rates) if rates else 0.0


def fetching(
    digest: str,
    size: int,
    nodes: Collection[str],
    held: Mapping[str, Collection[str]],
    rate: float,
    answering: Collection[str] | None = None,
) -> Fetching:
    """Return whether nodes have to fetch an image.

    Args:
        nodes: on which a session could start. held: the nodes that have an image, by digest. rate: bytes per second.
        answering: the nodes that say what they have, None = all.
    """
    there = len(set(nodes) & set(held.get(digest, ())))
    silent = len(set(nodes) - set(answering)) if answering is not None else 0
    return Fetching(len(set(nodes)), there, max(1.0, size / rate) if rate and size else 0.0, silent)


def duration(seconds: float) -> str:
    """Return a time in words as people estimate it: 4 s, 40 s, 3 min."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 95:
        return f"{round(seconds / 5) * 5} s"
    return f"{round(seconds / 60)} min"


def size_text(size: int) -> str:
    """Return 3221225472 as "3.2 GB"; "" where it is not known."""
    if size <= 0:
        return ""
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value >= 9.95 or not unit else f"{value:.1f} {_UNITS[unit]}"
