"""Which rank is where, in a run that does not go on. No input or output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .description import join_words, rank_label
from .messages import EVERYBODY

#: Seconds without progress of any rank after which a run is said to hang.
STALL_SECONDS = 60.0
#: The place of an elastic rank that was given back.
GONE = -1
#: Collectives whose tensors have the same size in all ranks; those of others may differ.
SAME_SIZES = {"all_reduce", "broadcast", "reduce"}


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
    groups: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for rank in still:
        for newest in rank["where"].get("collectives") or ():
            groups.setdefault(str(newest["key"]), []).append((rank, newest))
    texts = []
    for found in groups.values():
        if all(newest["done"] for _, newest in found):
            continue
        others: list[Mapping[str, Any]] = []
        if found[0][1]["group"] == EVERYBODY:
            told = [*silent, *(rank for rank, _ in found)]
            others = [rank for rank in ranks if rank not in told and rank.get("place", 0) != GONE]
        texts.append(_collective_text(found, others, complete=not silent and found[0][1]["group"] == EVERYBODY))
    return texts


def _collective_text(
    found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    others: Sequence[Mapping[str, Any]],
    *,
    complete: bool,
) -> str:
    """Return the sentence of one group.

    Args:
        found: ranks and their newest collective. others: ranks of the group that have told none. complete: whether
            there are no further ones.
    """
    group = found[0][1]["group"]
    last = max(newest["number"] for _, newest in found if not newest["done"])
    waiting = _by_what(found, lambda newest: newest["number"] == last and not newest["done"])
    rest = [f"{_names(those)} began {at} last" for at, those in _by_number(found, lambda number: number < last)]
    beyond = [
        rank for rank, newest in found if newest["number"] > last or (newest["number"] == last and newest["done"])
    ]
    rest += [f"{_names(beyond)} {_have(beyond)} ended it"] if beyond else []
    none = [rank for rank in others if rank.get("state") == "running"]
    rest += [f"{_names(none)} {_have(none)} begun none"] if none else []
    ended = [rank for rank in others if rank.get("state") == "done"]
    rest += [f"{_names(ended)} ended {'its' if len(ended) == 1 else 'their'} code"] if ended else []
    if _is_disagreement(list(waiting)):
        parts = ", ".join(f"{_names(those)} in {what}" for what, those in waiting.items())
        return "; ".join([f"The ranks of {group} disagree at its collective {last}: {parts}", *rest]) + "."
    those = [rank for ranks in waiting.values() for rank in ranks]
    text = (
        f"In collective {last} of {group} ({next(iter(waiting))}) {_names(those)} wait{'s' if len(those) == 1 else ''}"
    )
    if rest or not complete:
        return "; ".join([text, *rest]) + "."
    return f"{text}, and none is late: look at the network between the nodes, and at the GPUs."


def _by_what(
    found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], chosen: Callable[[Mapping[str, Any]], bool]
) -> dict[str, list[Mapping[str, Any]]]:
    by: dict[str, list[Mapping[str, Any]]] = {}
    for rank, newest in found:
        if chosen(newest):
            by.setdefault(str(newest["what"]), []).append(rank)
    return by


def _by_number(
    found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], chosen: Callable[[int], bool]
) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return the ranks at each number, the lowest first, with the number and the collective."""
    by: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for rank, newest in found:
        if chosen(newest["number"]):
            by.setdefault((newest["number"], str(newest["what"])), []).append(rank)
    return [(f"{number} ({what})", by[number, what]) for number, what in sorted(by)]


def _is_disagreement(what: Sequence[str]) -> bool:
    """Return whether ranks cannot be in the same collective: another function, or sizes that have to be the same."""
    calls = {each.partition(" of ")[0] for each in what}
    return len(calls) > 1 or (len(what) > 1 and calls <= SAME_SIZES)


def _have(ranks: Sequence[Mapping[str, Any]]) -> str:
    return "has" if len(ranks) == 1 else "have"


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
