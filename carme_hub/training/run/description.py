"""A run as text, made from ``state.json`` and the ranks' logs. No input or output."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: The most ranks that are shown one by one: failed ones, and the first ones.
MAX_RANKS_SHOWN = 16
#: The most lines of the rank in front, and of a folded one.
FRONT_LINES, FOLDED_LINES = 400, 100
STATE_LABELS = {
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
    """A run at one moment.

    Attributes:
        state: the content of ``state.json``. now: epoch. lines: the newest lines of each rank. folder: of its files.
    """

    state: Mapping[str, Any]
    now: float
    lines: Mapping[int, Sequence[str]] = field(default_factory=dict)
    folder: str = ""

    @property
    def ended(self) -> bool:
        """Return whether the run has ended."""
        return str(self.state.get("state")) in ENDED

    @property
    def ranks(self) -> list[Mapping[str, Any]]:
        """Return the entries of the ranks, by number."""
        return sorted(self.state.get("ranks") or [], key=lambda rank: int(rank.get("rank", 0)))

    @property
    def front(self) -> int:
        """Return the number of rank 0's log: a worker of an elastic run keeps its log when its rank changes."""
        return next((int(rank.get("rank", 0)) for rank in self.ranks if rank.get("place") == 0), 0)

    @property
    def seconds(self) -> float:
        """Return for how long the run has lasted."""
        began = float(self.state.get("began") or 0)
        until = float(self.state.get("ended") or 0) or self.now
        return max(0.0, until - began) if began else 0.0


# -- words ------------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return a line as a terminal shows it: without escapes, and only what follows the last ``\\r``."""
    text = _ESCAPES.sub("", text.rstrip("\r\n"))
    return _CONTROLS.sub("", text.rpartition("\r")[2])


def readable(lines: Sequence[str], most: int) -> list[str]:
    """Return the newest lines for display, without Slurm's line about a cancelled step: the state says it better."""
    return [plain(line) for line in list(lines)[-most:] if not _CANCELLED.match(line)]


def earlier_text(lines: Sequence[str], most: int) -> str:
    """Return ``9,600 earlier lines``: those of a log that are not among the newest that are shown; or ""."""
    count = getattr(lines, "total", len(lines)) - min(len(lines), most)
    return f"{count:,} earlier line{'s' if count > 1 else ''}" if count > 0 else ""


def log_file(view: View, rank: int) -> str:
    """Return the path of a rank's log, "" where the folder is unknown."""
    return f"{view.folder}/rank-{rank}.log" if view.folder else ""


def format_duration(seconds: float) -> str:
    """Return ``0:42``, ``1:02:03``."""
    whole = int(max(0.0, seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def pluralize(number: int, word: str) -> str:
    """Return ``1 rank``, ``2 ranks``."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def stacks_text(stacks: Mapping[int, str]) -> str:
    """Return the stacks of ranks, each below its number."""
    return "\n".join(f"===== Rank {rank}\n{text}" for rank, text in sorted(stacks.items())) or "No rank runs."


def state_label(view: View) -> str:
    """Return the label of the state."""
    state = str(view.state.get("state") or "starting")
    return STATE_LABELS.get(state, state)


def gpu_kind(state: Mapping[str, Any]) -> str:
    """Return ``GPU``, or ``virtual GPU`` on a sandbox."""
    return "virtual GPU" if state.get("virtual") else "GPU"


def title(view: View) -> str:
    """Return the title: ``run1: 4 ranks on node1 and node2, torchrun``."""
    options = view.state.get("asked") or {}
    nodes = [str(node) for node in view.state.get("nodes") or ()]
    count = len(active_ranks(view)) or int(options.get("ranks") or 0)
    where = f" on {join_words(nodes)}" if nodes else ""
    gpus = int(view.state.get("gpus") or 0) or int(options.get("gpus_per_task") or 0) * count
    having = f", {pluralize(gpus, gpu_kind(view.state))}" if gpus > 0 else ""
    return f"{run_name(view.state)}: {pluralize(count, 'rank')}{where}{having}, {options.get('backend') or 'torchrun'}"


def active_ranks(view: View) -> list[Mapping[str, Any]]:
    """Return the ranks that count: in an elastic run, ranks that were given back are done before the others."""
    left = [rank for rank in view.ranks if rank.get("state") != "done"]
    return left if left and (view.state.get("asked") or {}).get("elastic") else view.ranks


def run_name(state: Mapping[str, Any]) -> str:
    """Return the name of a run."""
    return str(state.get("name") or state.get("id") or "run")


def join_words(words: Sequence[str], most: int = 4) -> str:
    """Return ``a``, ``a and b``, ``a, b, c and 5 more``."""
    if len(words) <= 1:
        return "".join(words)
    if len(words) > most:
        return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} more"
    return f"{', '.join(words[:-1])} and {words[-1]}"


def usage(view: View) -> str:
    """Return the time used so far: ``0:42 elapsed, 0:02:48 of GPU time``."""
    gpu = float(view.state.get("gpu_seconds") or 0)
    used = f", {format_duration(gpu)} of {gpu_kind(view.state)} time" if gpu else ""
    return f"{format_duration(view.seconds)} {'in all' if view.ended else 'elapsed'}{used}"


def progress(view: View) -> tuple[int, int]:
    """Return the finished steps and the number of all steps; (0, 0) where the code reports none."""
    first = next((rank for rank in view.ranks if rank.get("step") is not None), None)
    if first is None:
        return 0, 0
    done, total = int(first.get("step") or 0), int(first.get("total") or 0)
    # Code that counts from 0 ends one below the total.
    return (total if view.state.get("state") == "finished" and done == total - 1 else done), total


def speed(view: View) -> str:
    """Return the progress: ``step 120 of 400, 1240 samples/s``; "" where the code reports none."""
    done, total = progress(view)
    if not done and not total:
        return ""
    rates = [float(rank.get("rate") or 0) for rank in active_ranks(view)]
    unit, rate = ("steps", max(rates, default=0)) if counts_steps(view) else ("samples", sum(rates))
    of = f" of {total}" if total else ""
    return f"step {done}{of}" + (f", {rate:,.0f} {unit}/s" if rate >= 10 else f", {rate:.2g} {unit}/s" if rate else "")


def counts_steps(view: View) -> bool:
    """Return whether rates are steps per second: so where the code reports no samples; all ranks do each step."""
    return all(rank.get("samples", 0) is None for rank in view.ranks)


def failure(view: View) -> str:
    """Return the error that ended the run: ``Rank 2 on node1: ValueError: bad``; "" without an error."""
    error = view.state.get("error")
    if not error:
        return ""
    kind = str(error.get("type") or "").rpartition(".")[2]
    sentence = ": ".join(filter(None, (kind, str(error.get("message") or "").strip())))
    rank, node = error.get("rank"), str(error.get("node") or "")
    if rank is None:
        return sentence
    entry = next((each for each in view.ranks if each.get("rank") == rank), {"rank": rank})
    return f"Rank {rank_label(entry)}{f' on {node}' if node else ''}: {sentence or 'it failed'}"


def echo_text(view: View) -> str:
    """Return which ranks only lost the one that failed: ``Ranks 0 and 2 only lost rank 1: RuntimeError: …``; or ""."""
    error = view.state.get("error") or {}
    found = error.get("echoes") or ()
    if not found:
        return ""
    kind = str(found[0].get("type") or "").rpartition(".")[2]
    message = plain(str(found[0].get("message") or "").partition("\n")[0])
    who = join_words([str(each.get("rank")) for each in found], 8)
    return f"Rank{'s' if len(found) > 1 else ''} {who} only lost rank {error.get('rank')}: {kind}: {message}"


def restarts_text(view: View) -> str:
    """Return how often the ranks were started again, and why the last time; or ""."""
    restarts = view.state.get("restarts") or ()
    if not restarts:
        return ""
    last = restarts[-1]
    times = "once" if len(restarts) == 1 else f"{len(restarts)} times"
    reason = ": ".join(filter(None, (str(last.get("type") or "").rpartition(".")[2], str(last.get("message") or ""))))
    rank = f"rank {last['rank']}: " if last.get("rank") is not None else ""
    return f"Started again {times}, after {rank}{plain(reason)}"


def environment_text(view: View) -> str:
    """Return which variables of the notebook or terminal its ranks have, and which they do not have; or ""."""
    names = view.state.get("environ") or {}
    parts = []
    if found := names.get("forwarded"):
        parts.append(f"With {join_words(found, 8)} from here")
    if found := names.get("left_out"):
        parts.append(f"Not forwarded to the ranks: {join_words(found, 8)}")
    return "".join(f"{part}. " for part in parts).rstrip()


def reason(view: View) -> str:
    """Return what the run waits for, where its ranks hang, or why it ended."""
    parts = (str(view.state.get("message") or ""), "" if view.ended else str(view.state.get("stalled") or ""))
    return failure(view) or " ".join(filter(None, parts))


def visible_ranks(view: View) -> tuple[list[Mapping[str, Any]], int]:
    """Return the ranks to show one by one, and the number of the others."""
    ranks = sorted(
        view.ranks, key=lambda rank: (rank.get("place", 0) < 0, rank.get("place", 0))
    )  # lost ranks come last
    bad = [rank for rank in ranks[MAX_RANKS_SHOWN:] if rank.get("state") == "failed"][:4]
    first = ranks[: MAX_RANKS_SHOWN - len(bad)]
    return first + bad, len(ranks) - len(first) - len(bad)


def rank_label(rank: Mapping[str, Any]) -> str:
    """Return the label of a rank: ``1``; in an elastic run ``0 (log 1)`` where its log has another number."""
    number, place = int(rank.get("rank", 0)), rank.get("place")
    return str(number) if place in (None, -1, number) else f"{place} (log {number})"


def rank_cells(rank: Mapping[str, Any]) -> list[str]:
    """Return a rank's row of the table, with the columns ``rank_columns``."""
    state = str(rank.get("state") or "")
    exited = rank.get("exit")
    state += f" ({exited})" if exited not in (None, 0) and state == "failed" else ""
    step = rank.get("step")
    total = f" of {rank['total']}" if rank.get("total") else ""
    rate = rank.get("rate")
    return [
        rank_label(rank),
        str(rank.get("node") or ""),
        state,
        "" if step is None else f"{step}{total}",
        f"{float(rate):,.1f}" if rate else "",
        _percent(rank.get("gpu")),
        _percent(rank.get("cpu")),
        _gib(rank.get("gpu_memory_most")),
        _gib(rank.get("memory_most")),
    ]


def rank_columns(view: View) -> tuple[str, ...]:
    """Return the column names of ``rank_cells``."""
    rate = "Steps/s" if counts_steps(view) else "Samples/s"
    return ("Rank", "Node", "State", "Step", rate, "GPU", "CPU", "GPU memory (most)", "Memory (most)")


def _percent(value: Any) -> str:
    return "" if value is None else f"{float(value):.0f} %"


def _gib(mib: Any) -> str:
    return "" if mib is None else f"{float(mib) / 1024:.1f} GiB"


# -- plain text -------------------------------------------------------------------------------------------------------


def as_text(view: View) -> str:
    """Return the run for a front end without HTML: a summary, and the output of rank 0."""
    head = f"{state_label(view)}. {title(view)}; {usage(view)}"
    parts = [head]
    if sentence := reason(view):
        parts.append(sentence)
    if sentence := echo_text(view):
        parts.append(sentence)
    if sentence := restarts_text(view):
        parts.append(sentence)
    if sentence := speed(view):
        done, total = progress(view)
        filled = min(20, 20 * done // total) if total else 0
        parts.append((f"[{'#' * filled}{'-' * (20 - filled)}] " if total else "") + sentence)
    ranks, more = visible_ranks(view)
    rows = [rank_columns(view), *(tuple(rank_cells(rank)) for rank in ranks)]
    keep = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    widths = {at: max(len(row[at]) for row in rows) for at in keep}
    if len(rows) > 1:
        parts += ["  ".join(row[at].ljust(widths[at]) for at in keep).rstrip() for row in rows]
    if more:
        parts.append(f"and {pluralize(more, 'rank')} more")
    front = view.lines.get(view.front, ())
    if (earlier := earlier_text(front, FRONT_LINES)) and (file := log_file(view, view.front)):
        parts.append(f"({earlier} in {file})")
    parts += readable(front, FRONT_LINES)
    if sentence := environment_text(view):
        parts.append(sentence)
    if view.folder and len(view.ranks) > 1:
        parts.append(f"The output of the other ranks is in {view.folder}.")
    return "\n".join(parts)


def summary(rank: Mapping[str, Any]) -> str:
    """Return the heading of a folded rank: ``Rank 1 on node1, finished``."""
    node, state = str(rank.get("node") or ""), str(rank.get("state") or "")
    return f"Rank {rank_label(rank)}" + (f" on {node}" if node else "") + (f", {state}" if state else "")


# -- many runs --------------------------------------------------------------------------------------------------------

RUN_COLUMNS = ("Run", "State", "Ranks", "Nodes", "Began", "Took", "GPU time", "Message")


def run_cells(state: Mapping[str, Any], now: float) -> list[str]:
    """Return a run's row of the table, with the columns ``RUN_COLUMNS``."""
    view = View(state, now)
    began = float(state.get("began") or 0)
    gpu = float(state.get("gpu_seconds") or 0)
    return [
        str(state.get("id") or ""),
        state_label(view),
        str(len(view.ranks) or (state.get("asked") or {}).get("ranks") or ""),
        join_words([str(node) for node in state.get("nodes") or ()]),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(began)) if began else "",
        format_duration(view.seconds) if began else "",
        format_duration(gpu) + (" (virtual)" if state.get("virtual") else "") if gpu else "",
        reason(view),
    ]


def runs_text(states: Sequence[Mapping[str, Any]], now: float) -> str:
    """Return runs as a text table."""
    if not states:
        return "There is no run yet."
    rows = [list(RUN_COLUMNS), *([plain(word)[:80] for word in run_cells(state, now)] for state in states)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(RUN_COLUMNS))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
