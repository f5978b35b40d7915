"""Which runs of one session are on the same GPUs: nothing keeps them apart, so it is said."""

from __future__ import annotations

import contextlib

from .run_folder import LIVE, NoRun, Run, State, all_runs


def sharing(run: Run, wanted: int, have: int, most: int = 100) -> list[str]:
    """Return the names of other runs with which a run shares GPUs of its session, of the newest so many.

    The broker gives a run with a fixed number of ranks those that the fewest steps use. The steps of an elastic one are
    on all of a node, and its workers take the first.

    Args:
        wanted: GPUs on each node, of an elastic run all. have: what the session has on each.
    """
    session, found = run.asked()["session"], []
    for each in all_runs()[:most]:
        with contextlib.suppress(NoRun):
            said: State = each.state() if each != run else {"state": ""}
            if said["state"] in LIVE and said["session"] == session and (own := said.get("own_gpus", 0)):
                wanted += have if said["asked"]["elastic"] else -(-own // max(1, len(said["nodes"])))
                found.append(str(said["name"]))
    return found if wanted > have else []


def who_shares(run: Run, wanted: int, have: int) -> str:
    """Return what is said of other runs on the same GPUs, "" where there are none; arguments as ``sharing``'s."""
    others = sharing(run, wanted, have)
    return f"It shares GPUs of the session with {', '.join(others)}: each may be slower for that." if others else ""
