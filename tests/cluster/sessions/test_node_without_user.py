"""A node whose own system does not know a user: the session starts nevertheless, by the identity that Slurm sends."""

from __future__ import annotations

import contextlib
import pwd
from collections.abc import Iterator
from pathlib import Path

from rig.hub import Hub

from carme_hub.sandbox import Cluster
from carme_hub.sandbox.sandbox import Sandbox
from carme_hub.sandbox.slurm.daemons import PACKAGED, daemons, log_of

LOOK = "import getpass, os; print(os.getuid(), getpass.getuser(), os.path.expanduser('~'), os.getcwd())"


@contextlib.contextmanager
def node_without(cluster: Cluster, user: str) -> Iterator[None]:
    """Leave one node in the cluster, whose system does not have a user."""
    first, *others = cluster.node_ports
    known = Path("/etc/passwd").read_text().splitlines(keepends=True)
    accounts = cluster.state / "passwd-of-one-node"
    accounts.write_text("".join(line for line in known if not line.startswith(f"{user}:")))
    accounts.chmod(0o644)
    cluster.run("scontrol", "update", f"nodename={','.join(others)}", "state=drain", "reason=test")
    daemon = daemons(cluster, PACKAGED)[f"slurmd-{first}"]
    inside = 'mount --bind "$0" /etc/passwd && exec "$@"'
    argv = ["unshare", "--mount", "--propagation=private", "/bin/sh", "-c", inside, str(accounts), *daemon.argv]
    cluster.processes.stop(daemon.name)
    cluster.processes.start(daemon.name, argv, log=log_of(cluster.layout, daemon.name), env=daemon.env)
    try:
        cluster.wait_for(daemon.ready, within=20)
        record = cluster.processes.record(daemon.name)
        assert record is not None
        assert f"\n{user}:" not in Path(f"/proc/{record.pid}/root/etc/passwd").read_text()
        yield
    finally:
        cluster.processes.stop(daemon.name)
        Sandbox(cluster.state).up()


def test_a_session_starts_on_a_node_that_does_not_know_its_user(site: Hub, cluster: Cluster) -> None:
    who = pwd.getpwnam("tina")
    with node_without(cluster, "tina"):
        site.start_server("tina", profile="cpu")
        output = site.run_cell("tina", site.new_kernel("tina"), LOOK)
        site.stop_server("tina")
    assert output.split() == [str(who.pw_uid), "tina", who.pw_dir, who.pw_dir]
