"""How long the home page and the pages of jobs take for somebody with 10,000 jobs in a queue of 50,000.

Runs as ``python benchmarks/jobs_page.py [--own 10000] [--queue 50000]``; prints one JSON object a line. The answer of
squeue is forged from a fixed seed and parsed by the hub's own code; the pages go through a real JupyterHub application
over loopback, without a proxy, and no query of Slurm is made for them. The peer is what a page without a snapshot would
have to do at each load at the least: the same number of rows through ``cat``, as squeue prints them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/unit/spawners"), str(ROOT / "tests/unit/spawners/handlers")]

import jupyterhub.handlers  # noqa: E402
from forged_cluster import Size, answer, queue, sessions  # noqa: E402
from forged_hub import Browser, forged_hub  # noqa: E402
from measure import figure, load, log_progress, median, p95  # noqa: E402
from test_home_sessions import Part, SpawnerWithSession  # noqa: E402

from carme_hub.domain.cluster.jobs import Job, Snapshot  # noqa: E402
from carme_hub.garbage import ShortCollections  # noqa: E402
from carme_hub.slurm.cli.queue_rows import QueueRows, Separators, parse_queue  # noqa: E402
from carme_hub.slurm.cooperative import in_steps  # noqa: E402
from carme_hub.spawners.handlers.home import news, page  # noqa: E402
from carme_hub.spawners.handlers.home import sessions as sessions_handlers  # noqa: E402
from carme_hub.spawners.handlers.jobs import acts, again, one, output, rest  # noqa: E402
from carme_hub.spawners.handlers.pages import install_handlers, templates_path  # noqa: E402

GOAL, VIEWS, FRESH = 100.0, 40, 10
CUTS, NEXT_CUTS = Separators.of("@jobspage@"), Separators.of("@nextpage@")


class JobsWithoutDetails:
    """Slurm as far as pages ask it for one job: it knows the tasks of arrays, and nothing else."""

    reads_files = False

    def __init__(self, rows: QueueRows) -> None:
        self._rows = rows

    async def tasks(self, user: str, arrays: Collection[int]) -> list[Job]:
        return [job for job in self._rows.of_user(user) if job.array in arrays]

    async def details(self, *_: Any) -> None:
        return None

    async def ended(self, *_: Any) -> tuple[()]:
        return ()


def forged_answer(own: int, total: int) -> list[dict[str, str]]:
    """Return squeue's rows; alice has so many jobs of all, a quarter of them tasks of arrays."""
    size = Size(sessions=100, users=100, nodes=1000, jobs=total)
    rows = list(queue(size, sessions(size), 1))
    others = [row for row in rows if not row["NAME"].startswith("carme-")]
    for number, row in enumerate(others[:own]):
        row["USER"] = "alice"
        if number % 4 == 0:
            row |= {"ARRAY_JOB_ID": str(3_000_000 + number // 40), "ARRAY_TASK_ID": str(number)}
    return rows


async def timed(browser: Browser, path: str, contains: str, views: int = VIEWS) -> list[float]:
    """Return how many milliseconds each answer took."""
    took = []
    for _ in range(views):
        began = time.perf_counter()
        status, text, _ = await browser.get(path)
        took.append(1000 * (time.perf_counter() - began))
        if status != 200 or contains not in text:
            raise SystemExit(f"{path}: {status} {text[:500]}")
    return took


async def measure(own: int, total: int) -> bool:
    """Measure the pages."""
    log_progress(f"{own} of {total} jobs are of one user")
    forged = forged_answer(own, total)
    text, next_text = (answer(iter(forged), cuts) for cuts in (CUTS, NEXT_CUTS))
    began = time.perf_counter()
    rows: QueueRows = await in_steps(parse_queue(text, CUTS))
    more = {"own": own, "queue": total, "load": load()}
    figure("jobs page: an answer of squeue is parsed in", 1000 * (time.perf_counter() - began), "ms", **more)
    part: Any = Part()
    part.own_jobs = JobsWithoutDetails(rows)
    part.watcher.latest = Snapshot(time.monotonic(), time.monotonic(), rows)
    part.log = SimpleNamespace(warning=print, info=print, debug=print)
    SpawnerWithSession.part = part
    for module in (page, sessions_handlers, news, acts, again, one, output, rest):
        if hasattr(module, "started_hub"):
            module.started_hub = lambda: part  # type: ignore[attr-defined]
    install_handlers()
    collections = ShortCollections(asyncio.get_running_loop().call_soon_threadsafe, logging.getLogger("jobs"))
    collections.start()
    with tempfile.TemporaryDirectory() as folder:
        async with forged_hub(folder, SpawnerWithSession, template_paths=[templates_path()]) as hub:
            browser = await hub.browser("alice")
            user = next(job for job in rows.of_user("alice") if not job.array and job.phase.value == "waiting")
            empty = await timed(await hub.browser("nobody"), "/hub/home", "carme-sessions")
            home = await timed(browser, "/hub/home", "carme-jobs-title")
            fresh = []
            before, texts = rows, ((next_text, NEXT_CUTS), (text, CUTS))
            for number in range(FRESH):
                before = await in_steps(parse_queue(*texts[number % 2], before))
                part.watcher.latest = Snapshot(time.monotonic(), time.monotonic(), before)
                fresh += await timed(browser, "/hub/home", "carme-jobs-title", views=1)
            asks = await timed(browser, f"/hub/carme/jobs/act?act=hold&job={user.id}", "Hold jobs?")
            array = next(job for job in rows.of_user("alice") if job.array)
            job = await timed(browser, f"/hub/carme/jobs/one?job={array.array}", "Tasks")
    collections.stop()
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        peer = []
        for _ in range(VIEWS):
            began = time.perf_counter()
            subprocess.run(["cat", file.name], check=True, capture_output=True)
            peer.append(1000 * (time.perf_counter() - began))
    holds = figure("jobs page: home page, median", median(home), "ms", goal=GOAL, peer=median(peer), **more)
    holds &= figure("jobs page: home page after a new answer of squeue", median(fresh), "ms", goal=GOAL, **more)
    figure("jobs page: home page, p95", p95(home), "ms", **more)
    figure("jobs page: home page without jobs, median", median(empty), "ms", **more)
    figure("jobs page: question of an act, median", median(asks), "ms", goal=GOAL, **more)
    figure("jobs page: page of an array, median", median(job), "ms", goal=GOAL, **more)
    return holds


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--own", type=int, default=10_000)
    parser.add_argument("--queue", type=int, default=50_000)
    options = parser.parse_args()
    before = list(jupyterhub.handlers.default_handlers)
    try:
        return 0 if asyncio.run(measure(options.own, options.queue)) else 1
    finally:
        jupyterhub.handlers.default_handlers[:] = before


if __name__ == "__main__":
    sys.exit(main())
