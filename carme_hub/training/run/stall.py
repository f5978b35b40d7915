"""Which rank is where, in a run that does not go on. No input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .description import join_words, rank_label

#: Seconds without progress of any rank after which a run is said to hang.
STALL_SECONDS = 60.0


def stall_text(ranks: Sequence[Mapping[str, Any]], silence: Mapping[int, float]) -> str:
    """Return which rank is where, if for a minute none has gone on while some wait for others; "" otherwise.

    Args:
        ranks: entries of the state. silence: seconds since the last heartbeat of each rank that has sent one.

    Returns:
        Such as ``No rank goes on: rank 1 in load_batch (train.py, line 12) for 62 s; ranks 0 and 2 in all_reduce …``.
    """
    running = [rank for rank in ranks if rank.get("state") == "running"]
    silent = [rank for rank in running if silence.get(int(rank["rank"]), 0.0) > STALL_SECONDS]
    still = [rank for rank in running if rank not in silent and _seconds(rank) >= STALL_SECONDS]
    if not running or len(silent) + len(still) < len(running):
        return ""
    if not silent and not any(rank["where"]["waits"] for rank in still):
        return ""  # nobody waits for another, so each may be working
    places: dict[tuple[bool, str], list[Mapping[str, Any]]] = {}
    for rank in still:
        where = rank["where"]
        places.setdefault((bool(where["waits"]), _place(where)), []).append(rank)
    parts = [_silent(silent, silence)] if silent else []
    for (_, place), those in sorted(places.items(), key=lambda each: each[0][0]):  # those that wait come last
        parts.append(f"{_names(those)} in {place} for {max(_seconds(each) for each in those):.0f} s")
    return f"No rank goes on: {'; '.join(parts)}."


def _silent(ranks: Sequence[Mapping[str, Any]], silence: Mapping[int, float]) -> str:
    longest = max(silence[int(rank["rank"])] for rank in ranks)
    have = "has" if len(ranks) == 1 else "have"
    why = "code that keeps Python's lock, or a node that is down"
    return f"{_names(ranks)} {have} sent nothing for {longest:.0f} s ({why})"


def _names(ranks: Sequence[Mapping[str, Any]]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {join_words([rank_label(rank) for rank in ranks], 8)}"


def _seconds(rank: Mapping[str, Any]) -> float:
    return float((rank.get("where") or {}).get("seconds") or 0)


def _place(where: Mapping[str, Any]) -> str:
    file = f" ({where['file']}, line {where['line']})" if where.get("file") else ""
    return f"{where['function']}{file}"
