"""The job of a companion: a session's, but for what runs in it. Ranks come to it by ``srun --jobid``."""

from __future__ import annotations

import json
from dataclasses import replace

from carme_hub.containers.runtime import Image
from carme_hub.domain.cluster.jobs import JobSpec
from carme_hub.domain.sessions.session import Request
from carme_hub.node import program
from carme_hub.spawners.job_script import LAUNCH, Owner, Server, Site, render, session_folder

#: What keeps the nodes; travels in the data document.
KEEP = program("companion")
#: Of a session's document: what is its server's alone, and what starts steps, which is its session's to do.
_NOT_FOR_COMPANIONS = ("singleuser.json", "carme-singleuser", "carme-steps", "carme-srun")
_NOBODY = Server(argv=(), environ={}, callback="", nonce="")


def render_companion(session: str, parent: str, owner: Owner, request: Request, image: Image, site: Site) -> JobSpec:
    """Return the job of a companion.

    The document has all that a session's has for its ranks (their plan, image and binds), and no server.

    Raises:
        ContainerError: the runtime cannot do what the request needs.
    """
    spec = render(session, owner, request, image, _NOBODY, site)
    document = json.loads(spec.data)
    del document["singleuser"]
    for name in _NOT_FOR_COMPANIONS:
        document["files"].pop(name, None)
    document["files"]["carme-keep"] = {"mode": 0o700, "text": KEEP}
    document["files"]["carme-launch"] = {"mode": 0o600, "text": LAUNCH}  # for carme-rank, on each node
    document["plan"] = {
        "argv": ["/usr/bin/python3", "-IS", f"{spec.session_folder}/carme-keep", session_folder(owner, parent)],
        "supervise": "exec",
        "grace": site.grace,
    }
    return replace(spec, nodes=request.nodes, data=json.dumps(document, separators=(",", ":")).encode())
