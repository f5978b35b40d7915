"""Renders the job of a companion: a session's job with another program in it. Ranks join it by ``srun --jobid``.

A batch job has the session's container too, and in it the conductor of its run in place of a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from carme_hub.containers.build.job import BuildWork
from carme_hub.containers.build.system import plan_on_node
from carme_hub.containers.runtime import Image
from carme_hub.domain.cluster.jobs import JobSpec
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import ContainerError
from carme_hub.node import program
from carme_hub.spawners.job_script import (
    LAUNCH,
    NOBODY,
    Owner,
    Server,
    Site,
    container_of,
    packages_folder,
    render,
    session_folder,
)

#: The program that keeps the nodes allocated; part of the data document.
KEEP = program("companion")
#: Files of a session's document that are for its server, and those that a companion does not need: it starts no steps.
SERVER_FILES = ("singleuser.json", "carme-singleuser", "carme-full-home", "carme-end-report")
_NOT_FOR_COMPANIONS = (*SERVER_FILES, "carme-steps", "carme-srun")
#: The module in the image that conducts the run of a batch job.
BATCH_PROGRAM = "carme_hub.training.conduct_batch"
#: The file of the session folder with the files of a run; as in that module.
RUN_FILES = "run-files.json"


def render_companion(
    session: str, parent: str, owner: Owner, request: Request, image: Image, site: Site, server: Server = NOBODY
) -> JobSpec:
    """Return the job of a companion.

    Its document has the session's part on ranks (plan, image and binds), and no server.

    Args:
        server: only what its nodes report copies with.

    Raises:
        ContainerError: the runtime cannot do what the request needs.
    """
    spec = render(session, owner, request, image, server, site, packages_folder(owner, parent))
    document = json.loads(spec.data)
    del document["singleuser"], document["full_home"]  # runs are in the home, so a full one ends them
    document["parent"] = parent
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


def render_batch_job(
    session: str,
    owner: Owner,
    request: Request,
    image: Image,
    site: Site,
    work: Mapping[str, str] | BuildWork,
    parent: str = "",
    server: Server = NOBODY,
) -> JobSpec:
    """Return the batch job of a run, which is a folder in the user's home, or of the build of an image.

    Its document has no server, and so no token; of secrets only what its nodes report copies with, where they copy.
    What pip had installed in the session is in the folder of the run.

    Args:
        work: files of the run, texts by name, where it was requested from elsewhere; its program makes the folder then.
            Or what is built.
        parent: the session that it came from. server: as for ``render_companion``.

    Raises:
        ContainerError: the runtime cannot do what the request needs.
    """
    folder = f"{owner.home}/.carme/runs/{request.batch}"
    packages = work.packages(owner.home) if isinstance(work, BuildWork) else f"{folder}/packages"
    spec = render(session, owner, request, image, server, site, packages)
    document = json.loads(spec.data)
    if "refused" in document["rank"]:
        raise ContainerError(document["rank"]["refused"])
    del document["singleuser"], document["full_home"]  # runs are in the home, so a full one ends them
    document["parent"] = parent
    for name in SERVER_FILES:
        document["files"].pop(name, None)
    argv: tuple[str, ...] = (request.python, "-P", "-m", BATCH_PROGRAM, folder)
    if isinstance(work, BuildWork):
        document["files"] |= work.files()
        argv = work.argv(spec.session_folder)
    elif work:
        document["files"][RUN_FILES] = {"mode": 0o600, "text": json.dumps(dict(work))}
    container = replace(container_of(session, owner, request, image, site, packages), argv=argv)
    on_node = isinstance(work, BuildWork) and work.on_node
    plan = plan_on_node(container) if on_node else site.runtime.render(container)
    document["plan"] = site.supervised(plan, request)
    return replace(spec, nodes=request.nodes, data=json.dumps(document, separators=(",", ":")).encode())
