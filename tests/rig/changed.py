"""The sandbox's hub with changed settings, in place of the running one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from carme_hub.sandbox.demo import Demo

from .hub import Hub


class ChangedDemo(Demo):
    """The demo with additional settings in its configuration file."""

    @property
    def config_file(self) -> Path:
        return self.cluster.state / "changed-hub.py"

    def write_config(self, more: str) -> None:
        """Write a configuration: the sandbox's, followed by these settings."""
        self.config_file.write_text(f"load_subconfig({str(super().config_file)!r})\nc = get_config()\n{more}")
        self.config_file.chmod(0o644)


@contextlib.contextmanager
def changed_hub(hub: Hub, more: str, *, user: str = "", start: bool = True) -> Iterator[Hub]:
    """Run the hub with more settings, then the first one again; both know the same sessions.

    Args:
        more: Python text that comes after the sandbox's own configuration.
        user: the user that the hub runs as; the hub then has a separate folder with its own databases.
        start: with False the caller starts the hub.
    """
    fields = {field.name: getattr(hub.demo, field.name) for field in dataclasses.fields(hub.demo)}
    if user:
        folder = hub.cluster.state / f"hub-of-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        fields |= {"folder": folder, "user": user}
    demo = ChangedDemo(**fields)
    if user:
        demo._write_facts()
    demo.write_config(more)
    other = Hub(demo)
    processes = demo.sandbox.processes
    processes.stop("hub", within=20)
    if user:
        processes.stop("proxy")
    try:
        if start:
            other.start()
        yield other
    finally:
        if processes.alive("hub"):
            other.stop_all()
        processes.stop("hub", within=20)
        if user:
            processes.stop("proxy")
        hub.start()
