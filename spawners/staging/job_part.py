"""The data document's part on data that is copied, and the scratch folder in the container. Pure, but for one text.

``job_script`` renders it into the job of a session; ``carme_hub.node.staging`` reads it on the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from carme_hub.containers.runtime import Bind
from carme_hub.domain.sessions.session import Request
from carme_hub.domain.staging.entries import RUN
from carme_hub.node import program

#: Has data copied to the node before the container starts; a file of the data document.
STAGING: Mapping[str, object] = {"mode": 0o600, "text": program("staging/job")}
NO_PROOFS: Mapping[str, str] = MappingProxyType({})


def comment(session: str, request: Request, own: str) -> str:
    """Return the job's comment, by which Slurm's Prolog makes the scratch folder (``carme-stage-out``).

    Args:
        own: the site's comment for all sessions, "" for none.
    """
    return f"{own} carme-stage {session} {request.stage['scratch_gib']}".strip()


def scratch_bind(session: str, request: Request, root: str) -> tuple[Bind, ...]:
    """Return the binds of a session's scratch folder, first, and of its object storage; () where it has none."""
    if not request.stage:
        return ()
    objects = (Bind(f"{root}/{session}/objects", "/objects"),) if request.stage.get("mount") else ()
    return (Bind(f"{root}/{session}/data", f"/scratch/{session}", "rw"), *objects)


def stage_part(
    request: Request,
    root: str,
    binds: Sequence[Bind],
    copies: Mapping[str, object],
    callback: str,
    nonce: str,
    proofs: Mapping[str, str] = NO_PROOFS,
) -> dict[str, object]:
    """Return the part; its places are paths of the node.

    Args:
        root: folder of the nodes with the scratch folders. copies: how data is copied (``CarmeStaging``).
        callback: URL of the session's callback. nonce: proves the reports; "" = there are none.
        proofs: paths of the files with which the node connects to the hub: ``key``, ``cert``, ``ca``; {} without TLS.
    """
    found: dict[str, object] = {"root": root, **copies, "minutes": request.time_limit}
    if request.stage.get(RUN):
        found["below"] = request.stage[RUN]
    found |= {"mount": request.stage.get("mount", []), "gib": request.stage["scratch_gib"]}
    for way, key in (("in", "source"), ("out", "target")):
        entries: Any = request.stage.get(way, [])
        found[way] = [{**each, key: on_node(str(each[key]), binds)} for each in entries]
    if nonce and callback:
        found["report"] = {"url": callback.rpartition("/")[0] + "/stage", "nonce": nonce, "proofs": dict(proofs)}
    return found


def on_node(place: str, binds: Sequence[Bind]) -> str:
    """Return the path on the node of a path in the container; a place that is no path stays as it is."""
    inside = [b for b in binds if place == b.destination or place.startswith(b.destination.rstrip("/") + "/")]
    if not inside:
        return place
    bind = max(inside, key=lambda each: len(each.destination))
    return bind.source.rstrip("/") + place[len(bind.destination.rstrip("/")) :]
