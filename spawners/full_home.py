"""A session whose home is full: its session folder is on the node."""

from __future__ import annotations

from dataclasses import replace

from carme_hub.containers.runtime import ContainerRequest, Runtime


def node_folder(session: str) -> str:
    """Return the session folder of a session whose home is full: on its node, and as short as a socket's path needs."""
    return f"/tmp/carme-{session}/{session}"  # noqa: S108  the batch script makes it, or refuses


def full_home_part(session: str, container: ContainerRequest, runtime: Runtime) -> dict[str, object]:
    """Return the data document's part for a full home: the same container, with its session folder on the node."""
    folder = node_folder(session)
    moved = replace(
        container,
        session_folder=folder,
        argv=tuple(word.replace(container.session_folder, folder) for word in container.argv),
        environ={name: text.replace(container.session_folder, folder) for name, text in container.environ.items()},
    )
    return {"folder": folder, "argv": list(runtime.render(moved).argv)}
