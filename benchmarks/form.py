"""How long the form takes at 1,000 nodes and 3,000 jobs, and how often it queries Slurm.

Runs as ``python benchmarks/form.py``; prints one JSON object a line. The answer of ``scontrol show node`` and the queue
are generated from a fixed seed. The page goes through a real JupyterHub application over loopback, without a proxy. The
peer, jupyterhub_moss, renders its form from ``sinfo`` in the same run where it is installed; it is not one of our
dependencies.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "unit" / "spawners"))  # the hub of the unit tests

from forged_hub import SpawnerThatOnlyNotes, forged_hub  # noqa: E402

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot  # noqa: E402
from carme_hub.domain.cluster.resources import Gpus, Node  # noqa: E402
from carme_hub.domain.sessions.availability import Cluster  # noqa: E402
from carme_hub.domain.sessions.profile_choice import parse_profiles  # noqa: E402
from carme_hub.slurm.cli import parse  # noqa: E402
from carme_hub.slurm.watcher import Health  # noqa: E402
from carme_hub.spawners.form.form import Offer, render_form  # noqa: E402
from carme_hub.spawners.handlers.pages import install_handlers, templates_path  # noqa: E402
from carme_hub.spawners.hub.cluster import ClusterCache  # noqa: E402

NODES, JOBS, VIEWS = 1000, 3000, 40
TYPES = ("a100", "h100", "l40s", "v100")
NOW = time.time()


def figure(
    name: str, value: float, unit: str, goal: float | None = None, peer: float | None = None, **more: Any
) -> None:
    holds = None if goal is None else value <= goal
    line = {"figure": name, "value": round(value, 2), "unit": unit, "peer": peer, "goal": goal, "holds": holds, **more}
    print(json.dumps(line), flush=True)


def recorded_nodes() -> str:
    """Return the output of ``scontrol show node --details --oneliner`` for 1,000 nodes, from a fixed seed."""
    rng = random.Random(2)
    lines = []
    for n in range(NODES):
        type, used = TYPES[n % len(TYPES)], rng.choice((0, 2, 4, 6, 7, 8, 8, 8))
        state = rng.choices(("MIXED", "IDLE", "ALLOCATED", "DOWN*+DRAIN"), (60, 10, 25, 5))[0]
        marks = f"0-{used - 1}" if used else "N/A"
        lines.append(
            f"NodeName=node{n:04} Arch=x86_64 CoresPerSocket=64 CPUAlloc={16 * used} CPUTot=128 CPULoad=12.5 "
            f"AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:{type}:8(S:0-1) "
            f"GresUsed=gpu:{type}:{used}(IDX:{marks}) NodeAddr=10.0.{n // 250}.{n % 250} NodeHostName=node{n:04} "
            f"Version=22.05.8 OS=Linux 6.1.0 RealMemory=1031000 AllocMem={120000 * used} FreeMem=90000 Sockets=2 "
            f"Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
            f"Partitions=gpu,part{n % 10} BootTime=2026-11-01T00:00:00 SlurmdStartTime=2026-11-01T00:00:00 "
            "CfgTRES=cpu=128,mem=1031000M AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0"
        )
    return "\n".join(lines) + "\n"


def queue(nodes: tuple[Node, ...]) -> dict[int, Job]:
    """Return 3,000 jobs, two thirds running, from a fixed seed."""
    rng = random.Random(3)
    jobs = {}
    for n in range(JOBS):
        node = rng.choice(nodes)
        gpus = Gpus(next(iter(node.gpus)), rng.randint(1, 8))
        if n % 3:
            job = Job(
                n, "j", "u", "RUNNING", Phase.ACTIVE, nodes=(node.name,), end=NOW + rng.randint(60, 90000), gpus=gpus
            )
        else:
            job = Job(n, "j", "u", "PENDING", Phase.WAITING, reason="Priority", partition="gpu", gpus=gpus)
        jobs[n] = job
    return jobs


def profiles() -> list[dict[str, Any]]:
    """Return eight typical profiles."""
    limits = {"cpus": {"max": 128, "default": 16}, "memory_gib": {"max": 900, "default": 64}, "time_hours": {"max": 72}}
    every: dict[str, Any] = {
        "display_name": "Any GPU",
        "gpus": {"types": list(TYPES), "max": 8, "default": 8},
        **limits,
    }
    each = [{"display_name": f"{t} GPUs", "gpus": {"types": [t], "max": 8, "default": 8}, **limits} for t in TYPES]
    cpu = [{"display_name": f"CPU {n}", "partition": f"part{n}", **limits} for n in range(3)]
    return [{**every, "partition": "gpu"}, *({**e, "partition": "gpu"} for e in each), *cpu]


class WatcherThatCounts:
    """A watcher that answers from the generated record and counts its queries."""

    def __init__(self, text: str) -> None:
        self.queries = 0
        self.text = text
        self.health = Health(True, 0.0)
        self.latest = Snapshot(NOW, NOW, queue(parse.nodes(text)))

    async def nodes(self, max_age: float | None = None) -> tuple[Node, ...]:  # noqa: ARG002
        self.queries += 1
        return parse.nodes(self.text)


def timed(function: Any, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(1000 * (time.perf_counter() - began))
    return times


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


async def pages(look: ClusterCache, offered_profiles: Any, max_age: float) -> list[float]:
    """Return how long each page took; with ``max_age`` 0 each one queries Slurm, parses the answer and indexes it."""

    class SpawnerOnManyNodes(SpawnerThatOnlyNotes):
        async def offer(self) -> Offer:
            return Offer(
                offered_profiles, ("physics", "bio"), {"base": "", "torch": "PyTorch"}, cluster=await look.cluster()
            )

    install_handlers()
    times = []
    with tempfile.TemporaryDirectory() as tmp:
        async with forged_hub(tmp, SpawnerOnManyNodes, template_paths=[templates_path()]) as hub:
            browser = await hub.browser("ada")
            for _ in range(VIEWS):
                look.max_age = max_age
                began = time.perf_counter()
                status, text, _ = await browser.get("/hub/spawn")
                times.append(1000 * (time.perf_counter() - began))
                assert status == 200
                assert "a100 free" in text
    return times


async def moss() -> float | None:
    """Return jupyterhub_moss's time for one form at the median, in ms; None where it is not installed."""
    if importlib.util.find_spec("jupyterhub_moss") is None:
        return None
    from jupyterhub_moss import MOSlurmSpawner

    rows = [f"part{n} 60/20/20/100 128 7000/3000/2800/12800 gpu:a100:8 1031000 3-00:00:00" for n in range(10)]
    with tempfile.TemporaryDirectory() as tmp:
        record = Path(tmp) / "sinfo"
        record.write_text("\n".join(rows) + "\n")
        spawner = MOSlurmSpawner(user=SimpleNamespace(name="ada", settings={"template_path": []}, url=""), hub=None)
        spawner.exec_prefix = ""
        spawner.slurm_info_cmd = f"cat {record}"
        environments = {"e": {"description": "e", "path": "/opt/e/bin"}}
        spawner.partitions = {
            f"part{n}": {"description": "", "architecture": "", "simple": True, "jupyter_environments": environments}
            for n in range(10)
        }
        spawner.handler = SimpleNamespace(hub=SimpleNamespace(base_url="/hub/"))
        spawner.get_req_subvars = lambda: {}
        times = []
        for _ in range(VIEWS):
            began = time.perf_counter()
            assert "part9" in await spawner.create_options_form(spawner)
            times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times), 2)


async def main() -> None:
    logging.disable(logging.WARNING)
    text = recorded_nodes()
    nodes, offered_profiles = parse.nodes(text), parse_profiles(profiles())
    jobs = queue(nodes).values()
    # The peer's server-side form against ours; ours once without any cache, as for the first page.
    other = await moss()
    note = "jupyterhub_moss is not installed" if other is None else "the peer reads a record in place of sinfo"

    def form() -> None:
        cluster = Cluster(nodes, jobs, seen=NOW)
        render_form(Offer(offered_profiles, ("a", "b"), {"base": "", "torch": ""}, cluster=cluster), now=NOW)

    figure("form_first_render", timed(form, 1)[0], "ms", 200)
    figure("form_render_median", statistics.median(timed(form, VIEWS)), "ms", 200, other, note=note)
    figure("node_answer_parse_median", statistics.median(timed(lambda: parse.nodes(text), 10)), "ms")
    watcher = WatcherThatCounts(text)
    look = ClusterCache(watcher, max_age=10.0)
    await look.cluster()
    times = await pages(look, offered_profiles, max_age=3600.0)
    figure("form_page_median", statistics.median(times), "ms", 200)
    figure("form_page_p95", p95(times), "ms", 200)
    times = await pages(look, offered_profiles, max_age=0.0)
    figure("form_page_with_a_new_answer_p95", p95(times), "ms", 200)
    look, before = ClusterCache(watcher, max_age=10.0), watcher.queries
    for _ in range(1000):
        await look.cluster()
    figure("cluster_queries_for_1000_pages", watcher.queries - before, "queries", 1)


if __name__ == "__main__":
    asyncio.run(main())
