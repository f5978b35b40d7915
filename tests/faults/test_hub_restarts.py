"""S1 and S2: no session, kernel or open connection is lost when hub or proxy restart, crash, or cannot reach a node."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from rig.faults import cut
from rig.hub import Hub, wait_for
from rig.oracle import Oracle
from rig.truth import Truth


def test_a_hub_restart_and_a_hub_crash_keep_kernels_and_open_connections(hub: Hub, oracle: Oracle) -> None:
    hub.start_server("alice", profile="a100", gpus=2)
    kernel = hub.new_kernel("alice")
    assert hub.run_cell("alice", kernel, "mark = 6 * 7") == ""
    before = oracle.truth.row("alice")
    output = asyncio.run(asyncio.wait_for(_speak_across_restarts(hub, kernel), 300))
    assert output == ["42", "43", "44"]
    server = hub.wait_server("alice", limit=30)
    assert server["ready"]
    assert hub.run_cell("alice", kernel, "print(mark)").strip() == "44"
    after = oracle.truth.row("alice")
    assert (after.id, after.job_id, after.port) == (before.id, before.job_id, before.port)


async def _speak_across_restarts(hub: Hub, kernel: str) -> list[str]:
    """Use one connection before a restart of the hub, after it, and after a kill -9."""
    async with hub.channel("alice", kernel) as socket:
        output = [await hub.execute(socket, "print(mark)")]
        await asyncio.to_thread(hub.restart)
        output.append(await hub.execute(socket, "mark += 1; print(mark)"))
        await asyncio.to_thread(hub.kill)
        output.append(await hub.execute(socket, "mark += 1; print(mark)"))
        await asyncio.to_thread(hub.start)
    return [text.strip() for text in output]


def test_a_proxy_crash_keeps_kernels_and_routes_return_within_30_s(hub: Hub, oracle: Oracle) -> None:
    hub.start_server("alice")
    kernel = hub.new_kernel("alice")
    hub.run_cell("alice", kernel, "mark = 'still here'")
    processes = hub.demo.sandbox.processes
    with oracle.fault():
        processes.signal("proxy", 9)
        wait_for(lambda: not processes.alive("proxy"), 5, "the proxy to die")
        begun = time.monotonic()
        hub.start()
    wait_for(lambda: ("alice", "") in (oracle.truth.routes() or {}), 40 - (time.monotonic() - begun), "the route")
    assert time.monotonic() - begun < 40  # 10 s for the proxy, 30 s for the routes
    assert hub.run_cell("alice", kernel, "print(mark)").strip() == "still here"


@pytest.mark.parametrize("how", ["DROP", "REJECT"])
def test_a_hub_restart_while_a_nodes_ports_are_cut_for_40_s_cancels_nothing(
    hub: Hub, oracle: Oracle, truth: Truth, how: str
) -> None:
    hub.start_server("alice", profile="a100")
    hub.start_server("bob")
    kernels = {user: hub.new_kernel(user) for user in ("alice", "bob")}
    for user, kernel in kernels.items():
        hub.run_cell(user, kernel, f"mark = '{user}'")
    before = {user: truth.row(user) for user in kernels}
    slurmd = hub.cluster.node_ports[before["alice"].node]
    starter = threading.Thread(target=hub.begin, args=("tina",))
    with oracle.fault(), cut(before["alice"].port, slurmd, how=how):
        healed = time.monotonic() + 40
        hub.restart()
        starter.start()  # a concurrent start may need that node
        hub.wait_server("bob", limit=30)  # who has nothing to do with it is served
        while time.monotonic() < healed:
            assert truth.live_jobs(before["alice"].id), "a healthy job was cancelled"
            time.sleep(1)
    starter.join(60)
    hub.wait_server("alice", limit=60)
    # Slurm itself gives up on a job that it cannot launch on that node: then the start fails, and says why.
    wait_for(lambda: not (hub.server("tina") or {}).get("pending"), 120, "an answer for who started meanwhile")
    if hub.server("tina") is None:
        started = truth.row("tina")
        assert started.cancel_reason or started.end_reason
    for user, kernel in kernels.items():
        assert truth.row(user).id == before[user].id
        assert hub.run_cell(user, kernel, "print(mark)").strip() == user


def test_a_session_that_waits_in_the_queue_can_be_stopped_after_a_hub_restart(hub: Hub, oracle: Oracle) -> None:
    hub.cluster.sbatch("-A", "physics", "--gres=gpu:h100:4", "-t", "30", user="bob", script="#!/bin/sh\nsleep 300\n")
    wait_for(lambda: any(j["state"] == "RUNNING" for j in hub.cluster.squeue()), 20, "the node to be taken")
    hub.begin("alice", profile="h100", gpus=1)
    wait_for(lambda: bool(hub.jobs()), 20, "the session's job")
    hub.restart()
    seen = hub.server("alice")
    assert seen is not None
    assert not seen["ready"]
    hub.stop_server("alice", limit=30)
    wait_for(lambda: not hub.jobs(), 30, "the job to be cancelled")
    hub.cluster.cancel_all()
    assert hub.start_server("alice", profile="cpu")["ready"]
