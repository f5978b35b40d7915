"""Which rank is where, in a run that does not go on. No input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .description import join_words, rank_label

#: Seconds without progress of any rank after which a run is said to hang.
STALL_SECONDS = 60.0
#: The process group that has all ranks, by torch's name.
EVERYBODY = "default_pg"


def stall_text(ranks: Sequence[Mapping[str, Any]], silence: Mapping[int, float]) -> str:
    """Return which rank is where, if for a minute none has gone on while some wait for others; "" otherwise.

    Args:
        ranks: entries of the state. silence: seconds since the last heartbeat of each rank that has sent one.

    Returns:
        Such as ``No rank goes on: rank 1 in load_batch (train.py, line 12) for 62 s; ranks 0 and 2 in all_reduce …``,
        and what torch's flight recorder says of their collectives.
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
    return " ".join([f"No rank goes on: {'; '.join(parts)}.", *_collectives_texts(ranks, still, silent)])


def _collectives_texts(
    ranks: Sequence[Mapping[str, Any]], still: Sequence[Mapping[str, Any]], silent: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a sentence for each process group of torch in which ranks wait: which collective is whose newest."""
    groups: dict[str, dict[tuple[int, str], list[Mapping[str, Any]]]] = {}
    waiting = set()
    for rank in still:
        for newest in rank["where"].get("collectives") or ():
            group, key = str(newest["group"]), (int(newest["number"]), str(newest["what"]))
            groups.setdefault(group, {}).setdefault(key, []).append(rank)
            if not newest["done"]:
                waiting.add(group)
    texts = []
    for group in (each for each in groups if each in waiting):
        told = [*silent, *(rank for those in groups[group].values() for rank in those)]
        others = [rank for rank in ranks if group == EVERYBODY and rank not in told]
        texts.append(_collective_text(group, groups[group], others, silent))
    return texts


def _collective_text(
    group: str,
    found: Mapping[tuple[int, str], Sequence[Mapping[str, Any]]],
    others: Sequence[Mapping[str, Any]],
    silent: Sequence[Mapping[str, Any]],
) -> str:
    """Return the sentence of one group.

    Args:
        found: ranks by number and name of their newest collective. others: ranks of the group that have told none.
    """
    last = max(number for number, _ in found)
    ahead = {what: those for (number, what), those in found.items() if number == last}
    if len(ahead) > 1:
        parts = ", ".join(f"{_names(those)} in {what}" for what, those in ahead.items())
        return f"The ranks of {group} disagree at its collective {last}: {parts}."
    [(what, those)] = ahead.items()
    text = f"In collective {last} of {group} ({what}) {_names(those)} wait{'s' if len(those) == 1 else ''}"
    late = [f"{_names(found[each])} began {each[0]} last ({each[1]})" for each in sorted(found) if each[0] < last]
    ended = [rank for rank in others if rank.get("state") == "done"]
    none = [rank for rank in others if rank.get("state") == "running"]
    late += [f"{_names(none)} began none"] if none else []
    late += [f"{_names(ended)} ended {'its' if len(ended) == 1 else 'their'} code"] if ended else []
    if late or silent or group != EVERYBODY:
        return "; ".join([text, *late]) + "."
    return f"{text}, and none is late: look at the network between the nodes, and at the GPUs."


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
