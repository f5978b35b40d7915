"""The newest collective of each process group of torch in this process, from torch's flight recorder.

The recorder is on by default in recent releases of torch, with NCCL and gloo. It says what a stack cannot: where in the
sequence of collectives the rank is that holds up the others, and whether ranks that wait, wait for the same one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

#: The most process groups that are told.
MAX_GROUPS = 4


def newest_collectives() -> list[dict[str, Any]]:
    """Return the newest collective of each group: see ``newest``; [] where torch records none."""
    module = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(module, "_dump_fr_trace_json", None) or getattr(module, "_dump_nccl_trace_json", None)
    if dump is None:
        return []
    try:
        return newest(json.loads(dump(True, False)))
    except (RuntimeError, ValueError, TypeError, KeyError):  # another release of torch
        return []


def newest(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the newest collective of each group in a flight record, as a dump has it.

    Returns:
        Of each group ``group``, ``number`` in its sequence, ``what`` (``all_reduce of 1024 Float``), and whether it is
        ``done``. Sends and receives have no place in the sequence, and are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in record.get("entries", ()):
        if entry.get("is_p2p"):
            continue
        id, name = (*map(str, entry["process_group"]), "")[:2]
        group = name if name and name != "undefined" else id
        found.pop(group, None)  # the newest group comes last
        found[group] = {
            "group": group,
            "number": int(entry["collective_seq_id"]),
            "what": _describe(entry),
            "done": bool(entry.get("retired")) or entry.get("state") == "completed",
        }
    return list(found.values())[-MAX_GROUPS:]


def _describe(entry: dict[str, Any]) -> str:
    name = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    sizes = [" x ".join(map(str, size)) or "1" for size in entry.get("input_sizes") or ()][:3]
    more = " and more" if len(entry.get("input_sizes") or ()) > 3 else ""
    kinds = ", ".join(dict.fromkeys(map(str, entry.get("input_dtypes") or ())))
    return f"{name} of {', '.join(sizes)}{more} {kinds}".strip() if sizes else name
