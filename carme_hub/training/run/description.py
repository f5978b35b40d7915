"""What is said of a run, in words and as plain text. Pure: what ``state.json`` and the ranks' logs say goes in."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: The most ranks that are shown one by one: those that failed, and the first ones.
SHOWN = 16
#: The most lines of a rank in front, and of one that is folded.
FRONT, FOLDED = 400, 100
WORDS = {
    "starting": "Starting",
    "waiting": "Waiting for GPUs",
    "running": "Running",
    "stopping": "Stopping",
    "finished": "Finished",
    "failed": "Failed",
    "interrupted": "Stopped",
    "lost": "Lost",
}
ENDED = ("finished", "failed", "interrupted", "lost")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CANCELLED = re.compile(r"(slurmstepd|srun)[^ ]*: error: \*\*\* STEP \S+ ON \S+ CANCELLED ")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class View:
    """What is known of a run at one moment.

    Attributes:
        state: what ``state.json`` holds. now: epoch. lines: the newest lines of each rank. folder: of its files.
    """

    state: Mapping[str, Any]
    now: float
    lines: Mapping[int, Sequence[str]] = field(default_factory=dict)
    folder: str = ""

    @property
    def ended(self) -> bool:
        """Return whether nothing more will come."""
        return str(self.state.get("state")) in ENDED

    @property
    def ranks(self) -> list[Mapping[str, Any]]:
        """Return what is known of each rank, by its number."""
        return sorted(self.state.get("ranks") or [], key=lambda rank: int(rank.get("rank", 0)))

    @property
    def front(self) -> int:
        """Return whose log is that of rank 0: workers of an elastic run keep their logs whatever rank they are."""
        return next((int(rank.get("rank", 0)) for rank in self.ranks if rank.get("place") == 0), 0)

    @property
    def seconds(self) -> float:
        """Return for how long it has run."""
        began = float(self.state.get("began") or 0)
        until = float(self.state.get("ended") or 0) or self.now
        return max(0.0, until - began) if began else 0.0


# -- words ------------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return a line as a terminal would leave it standing: no escapes, and only what the last ``\\r`` left."""
    text = _ESCAPES.sub("", text.rstrip("\r\n"))
    return _CONTROLS.sub("", text.rpartition("\r")[2])


def readable(lines: Sequence[str], most: int) -> list[str]:
    """Return the newest lines as people read them; that a step was cancelled is said elsewhere in better words."""
    return [plain(line) for line in list(lines)[-most:] if not _CANCELLED.match(line)]


def clock(seconds: float) -> str:
    """Return ``0:42``, ``1:02:03``."""
    whole = int(max(0.0, seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(number: int, word: str) -> str:
    """Return ``1 rank``, ``2 ranks``."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def state_word(view: View) -> str:
    """Return how it stands in a word or two."""
    state = str(view.state.get("state") or "starting")
    return WORDS.get(state, state)


def kind_of_gpu(state: Mapping[str, Any]) -> str:
    """Return ``GPU``, ``virtual GPU`` on a sandbox."""
    return "virtual GPU" if state.get("virtual") else "GPU"


def title(view: View) -> str:
    """Return its name, and what runs where: ``run1: 4 ranks on node1 and node2, torchrun``."""
    asked = view.state.get("asked") or {}
    nodes = [str(node) for node in view.state.get("nodes") or ()]
    count = len(at_work(view)) or int(asked.get("ranks") or 0)
    where = f" on {listed(nodes)}" if nodes else ""
    gpus = int(view.state.get("gpus") or 0) or int(asked.get("gpus_per_task") or 0) * count
    having = f", {counted(gpus, kind_of_gpu(view.state))}" if gpus > 0 else ""
    return f"{name_of(view.state)}: {counted(count, 'rank')}{where}{having}, {asked.get('backend') or 'torchrun'}"


def at_work(view: View) -> list[Mapping[str, Any]]:
    """Return the ranks that count: of an elastic run those that were given back are done before the others."""
    left = [rank for rank in view.ranks if rank.get("state") != "done"]
    return left if left and (view.state.get("asked") or {}).get("elastic") else view.ranks


def name_of(state: Mapping[str, Any]) -> str:
    """Return what people call it."""
    return str(state.get("name") or state.get("id") or "run")


def listed(words: Sequence[str], most: int = 4) -> str:
    """Return ``a``, ``a and b``, ``a, b, c and 5 more``."""
    if len(words) <= 1:
        return "".join(words)
    if len(words) > most:
        return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} more"
    return f"{', '.join(words[:-1])} and {words[-1]}"


def figures(view: View) -> str:
    """Return what it has cost so far: ``0:42 elapsed, 0:02:48 of GPU time``."""
    gpu = float(view.state.get("gpu_seconds") or 0)
    used = f", {clock(gpu)} of {kind_of_gpu(view.state)} time" if gpu else ""
    return f"{clock(view.seconds)} {'in all' if view.ended else 'elapsed'}{used}"


def progress(view: View) -> tuple[int, int]:
    """Return the steps that are done, and of how many; (0, 0) where the code reports none."""
    first = next((rank for rank in view.ranks if rank.get("step") is not None), None)
    if first is None:
        return 0, 0
    done, total = int(first.get("step") or 0), int(first.get("total") or 0)
    # Who counts from 0 ends one short of it.
    return (total if view.state.get("state") == "finished" and done == total - 1 else done), total


def speed(view: View) -> str:
    """Return the steps in words: ``step 120 of 400, 1240 samples/s``; "" where the code reports none."""
    done, total = progress(view)
    if not done and not total:
        return ""
    rates = [float(rank.get("rate") or 0) for rank in at_work(view)]
    unit, rate = ("steps", max(rates, default=0)) if by_steps(view) else ("samples", sum(rates))
    of = f" of {total}" if total else ""
    return f"step {done}{of}" + (f", {rate:,.0f} {unit}/s" if rate >= 10 else f", {rate:.2g} {unit}/s" if rate else "")


def by_steps(view: View) -> bool:
    """Return whether rates are steps a second: code that says no samples has no others, and all ranks do each step."""
    return all(rank.get("samples", 0) is None for rank in view.ranks)


def failure(view: View) -> str:
    """Return whose error ended it: ``Rank 2 on node1: ValueError: bad``; "" without an error."""
    error = view.state.get("error")
    if not error:
        return ""
    kind = str(error.get("type") or "").rpartition(".")[2]
    said = ": ".join(filter(None, (kind, str(error.get("message") or "").strip())))
    rank, node = error.get("rank"), str(error.get("node") or "")
    if rank is None:
        return said
    entry = next((each for each in view.ranks if each.get("rank") == rank), {"rank": rank})
    return f"Rank {called(entry)}{f' on {node}' if node else ''}: {said or 'it failed'}"


def why(view: View) -> str:
    """Return what it waits for, or why it ended."""
    return failure(view) or str(view.state.get("message") or "")


def shown(view: View) -> tuple[list[Mapping[str, Any]], int]:
    """Return the ranks to show one by one, and how many others there are."""
    ranks = sorted(view.ranks, key=lambda rank: (rank.get("place", 0) < 0, rank.get("place", 0)))  # the lost come last
    bad = [rank for rank in ranks[SHOWN:] if rank.get("state") == "failed"][:4]
    first = ranks[: SHOWN - len(bad)]
    return first + bad, len(ranks) - len(first) - len(bad)


def called(rank: Mapping[str, Any]) -> str:
    """Return what a rank is called: ``1``; of an elastic run ``0 (log 1)`` where its log has another number."""
    number, place = int(rank.get("rank", 0)), rank.get("place")
    return str(number) if place in (None, -1, number) else f"{place} (log {number})"


def rank_words(rank: Mapping[str, Any]) -> list[str]:
    """Return what is said of a rank in a table: number, node, state, step, samples per second, GPU, CPU."""
    state = str(rank.get("state") or "")
    exited = rank.get("exit")
    state += f" ({exited})" if exited not in (None, 0) and state == "failed" else ""
    step = rank.get("step")
    total = f" of {rank['total']}" if rank.get("total") else ""
    rate = rank.get("rate")
    return [
        called(rank),
        str(rank.get("node") or ""),
        state,
        "" if step is None else f"{step}{total}",
        f"{float(rate):,.1f}" if rate else "",
        _percent(rank.get("gpu")),
        _percent(rank.get("cpu")),
    ]


def heads(view: View) -> tuple[str, ...]:
    """Return the columns of ``rank_words``."""
    return ("Rank", "Node", "State", "Step", "Steps/s" if by_steps(view) else "Samples/s", "GPU", "CPU")


def _percent(value: Any) -> str:
    return "" if value is None else f"{float(value):.0f} %"


# -- plain text -------------------------------------------------------------------------------------------------------


def as_text(view: View) -> str:
    """Return the run for a front end without HTML: the sum of it, and what rank 0 says."""
    head = f"{state_word(view)}. {title(view)}; {figures(view)}"
    parts = [head]
    if said := why(view):
        parts.append(said)
    if said := speed(view):
        done, total = progress(view)
        filled = min(20, 20 * done // total) if total else 0
        parts.append((f"[{'#' * filled}{'-' * (20 - filled)}] " if total else "") + said)
    ranks, more = shown(view)
    rows = [heads(view), *(tuple(rank_words(rank)) for rank in ranks)]
    keep = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    widths = {at: max(len(row[at]) for row in rows) for at in keep}
    if len(rows) > 1:
        parts += ["  ".join(row[at].ljust(widths[at]) for at in keep).rstrip() for row in rows]
    if more:
        parts.append(f"and {counted(more, 'rank')} more")
    parts += readable(view.lines.get(view.front, ()), FRONT)
    if view.folder and len(view.ranks) > 1:
        parts.append(f"What the other ranks said is in {view.folder}.")
    return "\n".join(parts)


def summary(rank: Mapping[str, Any]) -> str:
    """Return the heading under which a rank is folded: ``Rank 1 on node1, finished``."""
    node, state = str(rank.get("node") or ""), str(rank.get("state") or "")
    return f"Rank {called(rank)}" + (f" on {node}" if node else "") + (f", {state}" if state else "")


# -- many runs --------------------------------------------------------------------------------------------------------

RUN_HEADS = ("Run", "State", "Ranks", "Nodes", "Began", "Took", "GPU time", "Message")


def run_words(state: Mapping[str, Any], now: float) -> list[str]:
    """Return what is said of a run in a table; ``RUN_HEADS`` are its columns."""
    view = View(state, now)
    began = float(state.get("began") or 0)
    gpu = float(state.get("gpu_seconds") or 0)
    return [
        str(state.get("id") or ""),
        state_word(view),
        str(len(view.ranks) or (state.get("asked") or {}).get("ranks") or ""),
        listed([str(node) for node in state.get("nodes") or ()]),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(began)) if began else "",
        clock(view.seconds) if began else "",
        clock(gpu) + (" (virtual)" if state.get("virtual") else "") if gpu else "",
        why(view),
    ]


def runs_text(states: Sequence[Mapping[str, Any]], now: float) -> str:
    """Return runs as a table of text."""
    if not states:
        return "There is no run yet."
    rows = [list(RUN_HEADS), *([plain(word)[:80] for word in run_words(state, now)] for state in states)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(RUN_HEADS))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
