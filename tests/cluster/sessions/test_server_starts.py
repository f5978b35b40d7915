"""A lab starts without things that it does not need: further interpreters, and programs of node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from notebooks import USER, HubThatOnlyListens, Session

from carme_hub.containers.bubblewrap import Bubblewrap
from carme_hub.containers.images import read_image
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.images.build import build_default_image
from carme_hub.spawners.apps.settings import CarmeApps

#: Prints how the kernel is reached, and the TCP ports on which its process listens: tcp(5) has state 0A and the inode.
PORTS = """
import json, os
from ipykernel.connect import get_connection_info
files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
sockets = {os.readlink(file) for file in files if os.path.lexists(file)}
rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
ports = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
print(json.loads(get_connection_info())["transport"], len(ports))
"""
#: In the place of the node's own; npm is a script of it.
NODE = '#!/bin/sh\necho "node $*" >> "$HOME/node.log"\n'


class SessionWithApps(Session):
    """A session whose server has the settings that the hub gives it, and another program called node."""

    node: Path

    def _write(self, document: dict[str, Any]) -> None:
        argv = document["plan"]["argv"]  # no user may bind over /usr/bin, so it is written into the plan itself
        at = argv.index("--chdir")
        document["plan"]["argv"] = [*argv[:at], "--ro-bind", str(self.node), "/usr/bin/node", *argv[at:]]
        files = {name: {"mode": 0o600, "text": words} for name, words in CarmeApps().files().items()}
        document["files"] |= files
        document["singleuser"]["environ"]["JUPYTER_CONFIG_PATH"] = str(self.folder)
        super()._write(document)


@pytest.fixture
def hub() -> Iterator[HubThatOnlyListens]:
    found = HubThatOnlyListens()
    yield found
    found.end()


async def test_a_lab_starts_no_program_of_node_and_continues_in_one_interpreter(
    cluster: Cluster, hub: HubThatOnlyListens
) -> None:
    session = SessionWithApps(cluster, hub, Bubblewrap(), read_image(build_default_image()))
    home = Path(session.user.pw_dir)
    asked = home / "node.log"
    asked.unlink(missing_ok=True)
    session.node = home / "node-that-writes-it-down"
    session.node.write_text(NODE)
    session.node.chmod(0o755)
    session.submit()
    try:
        session.wait_for_server()
        assert not asked.exists(), asked.read_text()
        started = [words for words in session.processes() if "python" in words.split()[0]]
        assert len(started) == 2, started  # the batch script, and the server's own
        assert "slurm_script" in started[0]
        assert f"/home/{USER}/.carme/sessions/{session.id}/carme-singleuser" in started[1]
        assert await session.cell("import subprocess; print(subprocess.run(['node', 'hello']).returncode)") == "0\n"
        assert asked.read_text() == "node hello\n"  # it is there for those who use it
    finally:
        session.scancel()
        asked.unlink(missing_ok=True)
        session.node.unlink()


async def test_a_kernel_has_no_port_on_which_others_of_the_node_could_listen_to_it(
    cluster: Cluster, hub: HubThatOnlyListens
) -> None:
    session = SessionWithApps(cluster, hub, Bubblewrap(), read_image(build_default_image()))
    session.node = Path("/bin/true")
    session.submit()
    try:
        session.wait_for_server()
        # The one is ipykernel's own for what forked processes print; it takes what begins with its secret.
        assert await session.cell(PORTS) == "ipc 1\n"
        kept = "import os; d = os.environ['JUPYTER_RUNTIME_DIR']; print(d[:19], oct(os.stat(d).st_mode)[-3:])"
        assert await session.cell(kept) == "/tmp/carme-kernels- 700\n"
    finally:
        session.scancel()
