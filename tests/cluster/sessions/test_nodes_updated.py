"""Nodes are updated in turn under a session; one is not well afterwards; and slurmd's own check drains nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.truth import Truth

from carme_hub.cli.nodes.check import FILES, write_programs
from carme_hub.sandbox.slurm.virtual_driver import LIBRARY

pytestmark = pytest.mark.nightly  # minutes, and it changes slurm.conf for a while


class Site:
    """ada updates node1 and node2, on the first of which alice works; the driver of the second loses a GPU."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.folder, self.cluster = hub, folder, hub.cluster
        self.ada, self.alice = hub.login("ada"), hub.login("alice")
        self.plan = folder / "plan.yaml"
        folder.chmod(0o755)
        for parent in folder.parents:
            if parent.name.startswith("pytest-"):
                parent.chmod(0o755)
        write_programs(folder / "opt", FILES)
        dev = self.cluster.layout.dev
        (folder / "health.conf").write_text(
            f"[gpus]\nlibrary = {dev / LIBRARY}\nkernel_log = /dev/null\n[memory]\nsize = none\n[disks]\nfull = /:101\n"
            f"[slurm]\nscontrol = {self.cluster.command('scontrol')}\nstate = {folder / 'state'}\n"
        )
        check = folder / "check"  # HealthCheckProgram has no arguments
        check.write_text(
            f'#!/bin/sh\necho "$SLURMD_NODENAME" >> {folder}/called\nexec {sys.executable} -I '
            f'{folder}/opt/carme-node-health --config {folder}/health.conf "$@"\n'
        )
        check.chmod(0o755)
        self.token = hub.api("POST", "/users/ada/tokens", {"note": "test"}).body["token"]

    def write_plan(self, node1: str, node2: str) -> None:
        code = f"import sys, time; time.sleep(2); open('{self.folder}/updated', 'a').write(sys.argv[1] + chr(10))"
        check = [str(self.folder / "check"), "--show", "--node", "{node}"]
        self.plan.write_text(
            "title: New driver\nwait: 2h\nstop_after: 1\n"
            f"groups:\n  - name: rack1\n    nodes: [{node1}, {node2}]\n"
            f"command:\n  argv: {json.dumps([sys.executable, '-c', code, '{node}'])}\n"
            f"check:\n  argv: {json.dumps(check)}\n  within: 3 s\n"
        )

    @property
    def environment(self) -> dict[str, str]:
        conf = {"SLURM_CONF": str(self.cluster.slurm_conf)}
        return {**os.environ, **conf, "JUPYTERHUB_API_URL": self.hub.demo.url, "JUPYTERHUB_API_TOKEN": self.token}

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "carme_hub.cli", "nodes", "update", str(self.plan), "--every", "0.5", *more]

    def run(self, *more: str) -> tuple[int, str]:
        line = self.command(*more)
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True, check=False, timeout=240)
        return done.returncode, done.stdout + done.stderr

    def node(self, name: str) -> str:
        return self.cluster.run("scontrol", "show", "node", name).stdout

    def lose_gpu(self, node: str, lost: bool) -> None:
        file = self.cluster.layout.dev / f"{node}.gpus"
        lines = [line for line in file.read_text().splitlines() if " lost " not in line]
        file.write_text("\n".join([*(["0 lost 1"] if lost else []), *lines]) + "\n")

    def stages(self) -> dict[str, str]:
        return {one["node"]: one["stage"] for one in json.loads(self.run("--status", "--json")[1])["nodes"]}

    def api(self, path: str) -> Any:
        return self.ada.request_api("GET", f"/hub/api/carme/console/{path}").body


@pytest.fixture(scope="module")
def place(site: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(site, tmp_path_factory.mktemp("update"))
    cluster = site.cluster
    cluster.run("sacctmgr", "-i", "modify", "user", cluster.hub_user, "set", "AdminLevel=Administrator")
    try:
        yield found
    finally:
        cluster.run("sacctmgr", "-i", "modify", "user", cluster.hub_user, "set", "AdminLevel=Operator")
        for name in cluster.node_ports:
            found.lose_gpu(name, False) if (cluster.layout.dev / f"{name}.gpus").exists() else None
            cluster.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        site.stop_all()


def test_nodes_are_updated_under_a_session_through_a_kill_and_a_restart_and_a_broken_one_stays_out(place: Site) -> None:
    hub = place.hub
    hub.start_server("alice", profile="a100", gpus=1, cpus=1, memory_gib=2, time_minutes=60)
    first = Truth(hub).row("alice", "").node
    second = next(name for name in sorted(place.cluster.node_ports) if name != first and "gpu:" in place.node(name))
    place.write_plan(first, second)
    place.lose_gpu(second, True)
    code, said = place.run("--dry-run")
    assert code == 0, said
    assert "alice" in said
    assert "DRAIN" not in place.node(first)

    with (place.folder / "first-run").open("w") as log:
        line = place.command("--yes")
        running = subprocess.Popen(line, env=place.environment, stdout=log, stderr=log, start_new_session=True)
    try:
        told = f"Node {first} is being updated"
        wait_for(lambda: told in str(place.alice.get("/hub/home").body), 90, "the message")
        assert "Reason=carme-update: New driver (ada)" in place.node(first)
        assert "Update: New driver (ada)" in str(place.ada.get("/hub/carme/console/nodes").body)
        wait_for(lambda: "1 being updated" in str(place.alice.get("/hub/home").body), 60, "the node among the others")
        assert "DRAIN" not in place.node(second), "one at a time"
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    hub.restart()
    assert hub.server("alice")["ready"], "her session goes on"  # type: ignore[index]
    assert place.stages() == {first: "emptying", second: "waiting"}

    hub.stop_server("alice")
    code, said = place.run()
    assert code == 1, said
    assert place.stages() == {first: "done", second: "failed"}, said
    assert (place.folder / "updated").read_text().split() == [first, second], "each once"
    assert "DRAIN" not in place.node(first)
    words = "its health check ended with 1"
    assert f"Reason=carme-update failed: New driver: {words}" in place.node(second)
    assert "GPUs is lost" in place.node(second)
    wait_for(lambda: words in str(place.ada.get("/hub/carme/console/nodes").body), 30, "the words for ada")
    wait_for(lambda: f"{second}: its update failed." in str(place.alice.get("/hub/home").body), 60, "the words")
    acts = [(act["action"], act["target"]) for act in reversed(place.api("acts")["acts"])]
    assert acts.count(("message", f"node {first}")) == 1, "nobody is told twice"
    assert [name for name, target in acts if target == first] == [
        *("drain-node", "update-node", "update-node", "update-node", "resume-node"),
    ]

    place.lose_gpu(second, False)
    code, said = place.run("--retry")
    assert (code, place.stages()[second]) == (0, "done"), said
    assert "DRAIN" not in place.node(second)


def test_slurmd_runs_the_check_which_drains_the_node_and_resumes_what_it_drained(place: Site) -> None:
    cluster, conf = place.cluster, place.cluster.slurm_conf
    node = next(name for name in sorted(cluster.node_ports) if "gpu:" in place.node(name))
    before = conf.read_text()
    conf.write_text(
        before + f"HealthCheckProgram={place.folder}/check\nHealthCheckInterval=3\nHealthCheckNodeState=ANY\n"
    )
    try:
        cluster.run("scontrol", "reconfigure")
        place.lose_gpu(node, True)
        wait_for(lambda: "Reason=carme-health: 1 of " in place.node(node), 90, "the drain by the health check")
        wait_for(lambda: f"{node}: 1 of " in str(place.alice.get("/hub/home").body), 60, "the reason on the page")
        console = "/hub/carme/console/nodes"
        wait_for(lambda: "Health check: 1 of " in str(place.ada.get(console).body), 30, "the words for ada")
        place.lose_gpu(node, False)
        wait_for(lambda: "DRAIN" not in place.node(node), 60, "the resume by the health check")
        other = next(name for name in sorted(cluster.node_ports) if name != node)
        cluster.run("scontrol", "update", f"NodeName={other}", "State=DRAIN", "Reason=A fan fails")
        time.sleep(10)
        assert "Reason=A fan fails" in place.node(other), "what somebody else drained is left alone"
        cluster.run("scontrol", "update", f"NodeName={other}", "State=RESUME")
    finally:
        conf.write_text(before)
        cluster.run("scontrol", "reconfigure")
