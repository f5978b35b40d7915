"""What 10, 50 and 150 sessions cost the hub and the scheduler, ours and batchspawner's, in one run.

Runs as ``python benchmarks/many_sessions.py [--sessions 10 50 150] [--within 10] [--queue 30] [--rest 60]``; prints one
JSON object a line. Each session belongs to a separate system user, created for the run. All users click Start within
ten seconds; the cluster is full and takes the first job thirty seconds after the first click; the storm lasts until the
last server is ready. Then nothing happens for a minute. ``--queue 0`` is a storm on idle nodes.

A light stub answers in place of jupyterhub-singleuser, because the sessions' own work would fill this machine.
``internal_ssl`` is off for both, because batchspawner does not bring certificates to a node. A query is a request for
jobs or nodes that slurmctld has answered, as ``sdiag`` counts them (requests that accompany one, such as partitions,
are not counted again); processor time is the hub's and that of the commands it ran. The processes of the virtual nodes
have the lowest processor priority, for both, because on a cluster they do not run on the hub's machine. Each
job step reads the whole process table whenever it counts what its job uses, and here that is the table of all nodes:
so it counts at Slurm's own interval of 30 seconds, for both, and not at the sandbox's of five.

The longest answer is given in total, and without what the machine added (``processor_waits.py``): on a machine that
does other work only the second is comparable; on a very busy one, where requests wait for each other, only the time for
which our hub's event loop was held without waiting for a processor: ``--stalls`` measures that, and names the callbacks
(``stalls.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jupyterhub
from hubs import (
    HERE,
    HubAddress,
    need_root,
    nodes_last,
    peer_environment,
    sandbox,
    start_our_hub,
    start_peer_hub,
    wait_idle,
)
from measure import figure, load, log_progress, median, p95
from processor_waits import WaitSampler, proxy_of
from storm import OtherUser, Storm, Tokens, log_in, start_all, stop_all
from system_users import system_users

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.sandbox import Cluster, Sandbox
from carme_hub.sandbox.images.build import build_default_image
from carme_hub.sandbox.slurm import settings

NODES = 8
TICKS = os.sysconf("SC_CLK_TCK")
PROFILE = {
    "slug": "small",
    "display_name": "Small",
    "default": True,
    "partition": "interactive",
    "cpus": {"min": 1, "max": 1, "default": 1},
    "memory_gib": {"min": 1, "max": 1, "default": 1},
    "time_minutes": {"min": 5, "max": 120, "default": 120},
}


@dataclass
class Measurement:
    """The work of one hub and the scheduler in a period."""

    seconds: float = 0.0
    cpu: float = 0.0
    queries: int = 0
    requests: int = 0
    waits: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    late: float = 0.0
    held: float | None = None
    failed: list[str] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)

    @property
    def per_minute(self) -> float:
        return 60 * self.queries / self.seconds


def cpu_of(pid: int) -> float:
    """Return the processor seconds of a process and of those commands it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def scheduler_requests(cluster: Cluster) -> tuple[int, int]:
    """Return how many queries, and how many requests of any kind, slurmctld has answered."""
    queries = requests = 0
    listed = False
    for line in cluster.run("sdiag").stdout.splitlines():
        if line.startswith("Remote Procedure Call statistics by"):
            listed = "message type" in line
        found = re.match(r"\s*(\w+)\s+\(\s*\d+\)\s+count:(\d+)", line)
        if (
            listed
            and found
            and not found[1].startswith(("REQUEST_STATS", "MESSAGE_", "REQUEST_COMPLETE", "REQUEST_STEP"))
        ):
            requests += int(found[2])  # except our own sdiag, and the messages of nodes about jobs
            queries += int(found[2]) if found[1].startswith(("REQUEST_JOB", "REQUEST_NODE")) else 0
    return queries, requests


async def measure_during(hub: HubAddress, cluster: Cluster, everybody: Tokens, what: Any) -> Measurement:
    """Measure while an awaitable runs."""
    measurement, since = Measurement(), time.time()
    other_user = await asyncio.to_thread(OtherUser, hub, everybody)
    sampler = await asyncio.to_thread(WaitSampler, [hub.pid, *proxy_of(hub.pid), other_user.pid])
    cpu, (queries, requests), began = cpu_of(hub.pid), scheduler_requests(cluster), time.perf_counter()
    storm = await what
    measurement.seconds = time.perf_counter() - began
    measurement.cpu = cpu_of(hub.pid) - cpu
    after = scheduler_requests(cluster)
    measurement.queries, measurement.requests = after[0] - queries, after[1] - requests
    answers = await asyncio.to_thread(other_user.answers)
    waits = await asyncio.to_thread(sampler.finish)
    measurement.waits = [1000 * (done - due) for due, done in answers]
    measurement.own, measurement.late = [waits.own(each) for each in answers], waits.late
    held = [stall["at"] - stall["waited"] for stall in stalls_of(hub) if stall["when"] >= since]
    measurement.held = max(held, default=None)
    if storm is not None:
        measurement.failed, measurement.ready = storm.failed, storm.ready
    return measurement


@contextlib.asynccontextmanager
async def full_cluster(cluster: Cluster, seconds: float) -> AsyncIterator[None]:
    """Let the cluster queue jobs, and start to run them that many seconds later."""

    def partition(state: str) -> None:
        cluster.run("scontrol", "update", "partitionname=interactive", f"state={state}")

    async def later() -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            partition("up")

    if not seconds:
        yield
        return
    await asyncio.to_thread(partition, "down")
    opening = asyncio.create_task(later())
    try:
        yield
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)


async def measure(
    hub: HubAddress, cluster: Cluster, names: list[str], options: dict[str, Any], args: argparse.Namespace
) -> tuple[Measurement, Measurement]:
    """Return the measurements of the storm and at rest."""

    async def storm_of_clicks() -> Storm:
        async with full_cluster(cluster, args.queue):
            return await start_all(hub, everybody, options, args.within)

    everybody = await log_in(hub, names)
    await asyncio.sleep(2)
    storm = await measure_during(hub, cluster, everybody, storm_of_clicks())
    log_progress(
        f"{hub.name}: {len(storm.ready)} ready, {len(storm.failed)} failed in {storm.seconds:.1f} s, load {load()}"
    )
    for problem in storm.failed[:3]:
        log_progress(f"  {problem}")
    await asyncio.sleep(10)
    rest = await measure_during(hub, cluster, everybody, asyncio.sleep(args.rest))
    await stop_all(hub, everybody)
    await asyncio.to_thread(wait_idle, cluster, 180.0)
    return storm, rest


def our_settings(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the settings in which our hub differs from the sandbox's."""
    command = [str(folder / "standin"), jupyterhub.__version__]
    spawner = {"cmd": command, "container_binds": [str(folder)], "profile_list": [PROFILE]}
    hub = {"tornado_settings": {"slow_spawn_timeout": 0}, "concurrent_spawn_limit": 0}
    settling = {"interval": CarmeQuotas.interval.default_value}  # the sandbox settles more often, to show refunds soon
    return {"SlurmContainerSpawner": spawner, "JupyterHub": hub, "CarmeQuotas": settling}


def start_peer(where: Sandbox, folder: Path) -> HubAddress:
    """Start the hub with batchspawner, with the stub in place of its wrapper and server."""
    venv = peer_environment(where, build_default_image(progress=log_progress))
    slurm = {"req_partition": "interactive", "req_nprocs": "1", "req_memory": "1G", "req_runtime": "120"}
    settings = {
        "SlurmSpawner": {**slurm, "req_srun": ""},  # one process less on the nodes, which are this machine
        "JupyterHub": {"tornado_settings": {"slow_spawn_timeout": 0}, "concurrent_spawn_limit": 0},
    }
    wrapper, words = f"/usr/bin/python3 -IS {folder / 'stub_singleuser.py'}", [jupyterhub.__version__, "--batchspawner"]
    return start_peer_hub(where, venv, settings, wrapper=wrapper, server=words)


def use_default_accounting_interval() -> None:
    """Let job steps count what their jobs use at Slurm's default interval (slurm.conf(5))."""
    of_sandbox = "JobAcctGatherFrequency=task=5\n"
    assert of_sandbox in settings._SLURM, "the sandbox has another interval now"
    settings._SLURM = settings._SLURM.replace(of_sandbox, "JobAcctGatherFrequency=task=30\n")


async def run(where: Sandbox, args: argparse.Namespace) -> None:
    cluster = where.facts()
    folder = where.layout.state / "standin"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    shutil.copyfile(HERE / "stub_singleuser.py", folder / "stub_singleuser.py")
    (folder / "stub_singleuser.py").chmod(0o644)
    # Ours as a server in an image: a script of the image's Python, which continues in the running interpreter.
    (folder / "standin").write_text("#!/usr/bin/env python3\n" + (HERE / "stub_singleuser.py").read_text())
    (folder / "standin").chmod(0o755)
    with nodes_last(where), system_users(cluster, max(args.sessions)) as names:
        hubs = []
        if "ours" in args.hubs:
            hubs.append(
                (start_our_hub(where, our_settings(folder), tls=False, stalls=args.stalls), {"profile": "small"})
            )
        if "batchspawner" in args.hubs:
            hubs.append((start_peer(where, folder), {}))
        for count in args.sessions:
            found = {}
            for hub, options in hubs:
                log_progress(f"{hub.name}: {count} sessions, load {load()}")
                before = load()
                pair = await measure(hub, cluster, names[:count], options, args)
                found[hub.name] = pair
                log_progress(f"  load {before} to {load()}")
            report(count, found)
        if args.stalls:
            print_stalls(hubs[0][0])


def stalls_of(hub: HubAddress) -> list[dict[str, Any]]:
    """Return the stalls of a hub's event loop, where they are recorded."""
    file = hub.stalls
    return [json.loads(line) for line in file.read_text().splitlines()] if file is not None and file.exists() else []


def print_stalls(hub: HubAddress, most: int = 10) -> None:
    """Print the longest stalls of a hub's event loop, without the time in which it waited for a processor."""
    stalls = sorted(stalls_of(hub), key=lambda stall: stall["at"] - stall["waited"], reverse=True)
    for stall in stalls[:most]:
        log_progress(f"  {json.dumps(stall)}")


def report(count: int, found: dict[str, tuple[Measurement, Measurement]]) -> None:
    """Print the figures of one number of sessions; the goals are for 150."""
    nothing = (Measurement(1.0), Measurement(1.0))
    ours, peer = found.get("ours", nothing), found.get("batchspawner", nothing)
    more: dict[str, Any] = {"sessions": count, "load": load()}
    last = count >= 150
    for number, when in enumerate(("storm", "rest")):
        mine, theirs = ours[number], peer[number]
        goal = theirs.per_minute / 50 if last else None
        name = f"sessions_{count}_{when}"
        figure(f"{name}_queries", mine.per_minute, "per minute", peer=theirs.per_minute, goal=goal, **more)
        figure(f"{name}_requests", mine.requests, "requests", peer=theirs.requests, **more)
        figure(f"{name}_hub_cpu", mine.cpu, "s", peer=theirs.cpu, seconds=round(mine.seconds, 1), **more)
        figure(f"{name}_api_p50", median(mine.waits), "ms", peer=median(theirs.waits), **more)
        figure(
            *(f"{name}_api_p95", p95(mine.waits), "ms"),
            peer=p95(theirs.waits),
            goal=100.0 if last and when == "storm" else None,
            **more,
        )
        figure(f"{name}_api_max", max(mine.waits, default=None), "ms", peer=max(theirs.waits, default=None), **more)
        figure(
            *(f"{name}_api_max_own", max(mine.own, default=None), "ms"),
            peer=max(theirs.own, default=None),
            goal=50.0,
            idle_process_late=round(mine.late, 1),
            **more,
        )
        if mine.held is not None:
            figure(f"{name}_loop_held", mine.held, "ms", goal=50.0, **more)
    figure(f"sessions_{count}_failed", len(ours[0].failed), "starts", peer=len(peer[0].failed), goal=0, **more)
    figure(f"sessions_{count}_ready_median", median(ours[0].ready), "s", peer=median(peer[0].ready), **more)
    figure(f"sessions_{count}_ready_p95", p95(ours[0].ready), "s", peer=p95(peer[0].ready), **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sessions", type=int, nargs="+", default=[10, 50, 150])
    parser.add_argument("--within", type=float, default=10.0, help="seconds over which the clicks are spread")
    parser.add_argument("--queue", type=float, default=30.0, help="seconds for which the cluster is full")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds of rest that are measured")
    parser.add_argument("--hubs", nargs="+", default=["ours", "batchspawner"], help="for work on one of them")
    parser.add_argument("--stalls", action="store_true", help="print the stalls of our hub's event loop")
    parser.add_argument("--keep", action="store_true", help="leave the state folder for the next run")
    args = parser.parse_args()
    need_root()
    use_default_accounting_interval()
    with sandbox("many", NODES, keep=args.keep) as where:
        asyncio.run(run(where, args))


if __name__ == "__main__":
    main()
