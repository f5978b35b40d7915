"""Limits that were last written to Slurm, by id (``account physics MaxJobs``), to detect changes by others. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .sacctmgr_argv import Entity, Target


def id_of(target: Target, key: str) -> str:
    """Return the id of a limit in the stored data."""
    return f"{target[0].value} {target[1]} {key}"


def read_id(id_: str) -> tuple[Target, str]:
    """Return the target and the key of an id. Names in Slurm contain no spaces."""
    entity, name, key = id_.split(" ", 2)
    return (Entity(entity), name), key


def list_of(id_: str) -> str:
    """Return the id of the QOS list that contains ``QOS/NAME``, "" for any other limit."""
    before, cut, _ = id_.partition(" QOS/")
    return f"{before} QOS" if cut else ""


def is_ours(id_: str, have: str, known: Mapping[str, str]) -> bool:
    """Return whether a limit still has the value that we wrote.

    A QOS list that we never wrote counts as ours if we added each name in it: after ``QOS+=low`` on an account without
    a list, sacctmgr shows the list ``low``.
    """
    if have == known.get(id_, ""):
        return True
    if not have or id_ in known or not id_.endswith(" QOS"):
        return False
    return all(known.get(f"{id_}/{name}") == "yes" for name in have.split(","))
