"""The newest collective of each process group of torch in this process, from torch's flight recorder.

The recorder is on by default in recent releases of torch; NCCL and gloo have one each. It says what a stack cannot:
where in the sequence of collectives the rank is that holds up the others, and whether ranks that wait, wait for the
same one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from carme_hub.training.run.messages import EVERYBODY

#: The most process groups that are told; the group of all ranks is among them.
MAX_GROUPS = 4


def newest_collectives() -> list[dict[str, Any]]:
    """Return the newest collective of each group: see ``newest``; [] where torch records none."""
    module = sys.modules.get("torch._C._distributed_c10d")
    found: dict[str, dict[str, Any]] = {}
    # Those of gloo, and of NCCL.
    for dump in (getattr(module, name, None) for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json")):
        try:
            found |= newest(json.loads(dump(True, False))) if dump is not None else {}
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError):  # another release of torch
            continue
    groups = sorted(found.values(), key=lambda each: each["group"] != EVERYBODY)
    return groups[:1] + groups[1:][-(MAX_GROUPS - 1) :]


def newest(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the newest collective of each group in a flight record, as a dump has it, by a key of the group.

    Returns:
        Of each group its ``key``, which is the same in all of its ranks, ``group`` (a name for people), ``number`` in
        its sequence, ``what`` (``all_reduce of 1024 Float``), and whether it is ``done``. Sends and receives have no
        place in the sequence, and are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in record.get("entries", ()):
        if entry.get("is_p2p"):
            continue
        id, name = (*map(str, entry["process_group"]), "")[:2]
        backend, _, call = str(entry["profiling_name"]).rpartition(":")
        key = f"{backend} {id} {name}"  # groups of a device mesh share a name
        found.pop(key, None)  # the newest group comes last
        found[key] = {
            "key": key,
            "group": name if name and name != "undefined" else f"process group {id}",
            "number": int(entry["collective_seq_id"]),
            "what": _describe(call, entry),
            # What gloo has ended it forgets; NCCL forgets what takes too long, too.
            "done": entry.get("state") == "completed" or (backend == "gloo" and bool(entry.get("retired"))),
        }
    return found


def _describe(call: str, entry: dict[str, Any]) -> str:
    sizes = [" x ".join(map(str, size)) or "1" for size in entry.get("input_sizes") or ()][:3]
    more = " and more" if len(entry.get("input_sizes") or ()) > 3 else ""
    kinds = ", ".join(dict.fromkeys(map(str, entry.get("input_dtypes") or ())))
    return f"{call} of {', '.join(sizes)}{more} {kinds}".strip() if sizes else call
