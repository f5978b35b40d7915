"""Runs of one session that use the same GPUs: nothing separates them, so the user gets a message."""

from __future__ import annotations

import contextlib

from carme_hub.training.run.run_folder import LIVE, NoRun, Run, State, all_runs
from carme_hub.training.session.step_broker import Allocation


def runs_sharing_gpus(run: Run, wanted: int, session: Allocation, most: int = 100) -> list[str]:
    """Return the names of other runs of the session that use the same GPUs, among the newest ``most`` runs.

    The broker gives a run with a fixed number of ranks the GPUs that the fewest steps use. The steps of an elastic run
    have all GPUs of a node, and its workers take the first ones.

    Args:
        wanted: GPUs on each node; an elastic run wants all. session: its job.
    """
    id, found = run.request()["session"], []
    for each in all_runs()[:most]:
        with contextlib.suppress(NoRun):
            other: State = each.state() if each != run else {"state": ""}
            if other["state"] in LIVE and other["session"] == id and (own := other.get("own_gpus", 0)):
                nodes = max(1, min(len(other["nodes"]), len(session.nodes)))  # others may be of its companion
                wanted += session.gpus if other["asked"]["elastic"] else -(-own // nodes)
                found.append(str(other["name"]))
    return found if wanted > session.gpus else []


def sharing_message(run: Run, wanted: int, session: Allocation) -> str:
    """Return a message about other runs on the same GPUs, "" where there are none; arguments as above."""
    others = runs_sharing_gpus(run, wanted, session)
    return f"It shares GPUs of the session with {', '.join(others)}: each may be slower." if others else ""
