"""A long queue and many sessions: what a query of the queue costs, and how long other requests wait meanwhile.

``python benchmarks/scale.py [--entries 1000000] [--seconds 20] [--fewer 10 1]`` (four minutes); prints one JSON object
a line. At full scale 2,000 users have 5,000 open sessions on 1,000 nodes, with a queue of 10,000 and of 50,000
jobs and a million entries in the ledger; at a tenth of it, everything is ten times fewer. Slurm's answers are forged by
a fixed seed (``forged_cluster.py``) and come from processes, as those of real commands do.

Each scale and length of the queue has a separate process: a real JupyterHub application with our watcher, reconciler,
registry, ledger and form, which queries the queue once a second because some sessions are just starting, while others
wait in the queue. Another process requests pages. The peer of a query is the same answer with every row parsed
completely; the peer of the number of queries is batchspawner's: one for each server and each poll (every 30 s).

The machine may do other work, so costs are processor time. Only ``late`` and the waits are by the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "unit" / "spawners"))  # the hub of the unit tests

from forged_cluster import SEPARATOR_WORDS, TYPES, Size, SlurmFromARecord, sessions  # noqa: E402
from forged_hub import ForgedHub, SpawnerThatOnlyNotes, forged_hub  # noqa: E402
from jupyterhub import orm  # noqa: E402
from ledger import fill  # noqa: E402
from measure import figure, load, log_progress, median, p95  # noqa: E402
from sqlalchemy import Engine, insert  # noqa: E402
from traitlets.config import Config  # noqa: E402

from carme_hub.accounting.settings import CarmeQuotas  # noqa: E402
from carme_hub.domain.cluster.jobs import Snapshot  # noqa: E402
from carme_hub.domain.sessions.liveness import Liveness  # noqa: E402
from carme_hub.domain.sessions.profile_choice import parse_profiles  # noqa: E402
from carme_hub.domain.sessions.session import Session  # noqa: E402
from carme_hub.garbage import ShortCollections  # noqa: E402
from carme_hub.sessions.associations import AssociationCache  # noqa: E402
from carme_hub.sessions.reconciler import SessionReconciler  # noqa: E402
from carme_hub.sessions.registry import SessionRegistry  # noqa: E402
from carme_hub.slurm.cli import parse  # noqa: E402
from carme_hub.slurm.cli.client import SlurmCli  # noqa: E402
from carme_hub.slurm.cli.queue_rows import QueueRows, Separators, parse_queue, read_job  # noqa: E402
from carme_hub.slurm.command import Commands  # noqa: E402
from carme_hub.slurm.watcher import SlurmWatcher  # noqa: E402
from carme_hub.spawners.form.form import Offer, render_form  # noqa: E402
from carme_hub.spawners.handlers.pages import install_handlers, templates_path  # noqa: E402
from carme_hub.spawners.hub.admission import Admission  # noqa: E402
from carme_hub.spawners.hub.cluster import ClusterCache  # noqa: E402
from carme_hub.store.engine import CarmeStore  # noqa: E402
from carme_hub.store.sessions import SessionStore, _to_row  # noqa: E402
from carme_hub.store.tables import session as session_table  # noqa: E402

_T = TypeVar("_T")
FULL = Size(5000, 2000, 1000, 0)
QUEUES = (10_000, 50_000)
#: Queries whose cost is measured, after the first.
LOOKS = 8
POLL = 30
#: Goals in ms of processor time for one query, by jobs in the queue.
GOALS = {10_000: 40.0, 50_000: 200.0}
STALL, PASS, API = 50.0, 1000.0, 50.0
LIMITS = {"cpus": {"max": 128, "default": 8}, "memory_gib": {"max": 900, "default": 64}, "time_hours": {"max": 72}}
POLICY = {"quotas": [{"id": "day", "user": "*", "gpu_time": 500, "window": "day"}]}
PROFILES = [
    {"display_name": "Any GPU", "gpus": {"types": list(TYPES), "max": 8, "default": 1}, "partition": "gpu", **LIMITS},
    *({"display_name": t, "gpus": {"types": [t], "max": 8, "default": 8}, "partition": "gpu", **LIMITS} for t in TYPES),
    *({"display_name": f"CPU {p}", "partition": p, **LIMITS} for p in ("cpu", "long", "gpu")),
]


def resident() -> float:
    """Return the MiB of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_to_end(work: Generator[None, None, _T]) -> _T:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Hub:
    """What all spawners of the measured hub share, as in ``spawners.hub.shared``; tokens are not revoked."""

    def __init__(self, engine: Engine, slurm: SlurmFromARecord) -> None:
        commands = Commands(prefix=str(slurm.prefix), timeout=60, max_bytes=200_000_000)
        log = logging.getLogger("scale")
        self.client = SlurmCli(cluster="lab", commands=commands, submitter=None)  # type: ignore[arg-type]
        self.watcher = SlurmWatcher(self.client, log=log)
        self.registry = SessionRegistry(SessionStore(engine), "lab")
        self.cluster_cache = ClusterCache(self.watcher)
        self.associations = AssociationCache(self.client)
        quotas = CarmeQuotas(config=Config({"CarmeQuotas": {"enabled": True, "policy": POLICY}}))
        self.admission = Admission(quotas, engine, "lab", self.associations, self.watcher, log)
        self.reconciler = SessionReconciler(self.registry, self.client, self.watcher, revoke=self._forget, log=log)
        self.slots = None

    async def _forget(self, _session: Session) -> bool:
        return True


class SpawnerOfMeasuredHub(SpawnerThatOnlyNotes):
    """Offers what our spawners offer, and starts nothing."""

    part: ClassVar[Any] = None
    offered_profiles: ClassVar[Any] = parse_profiles(PROFILES)

    async def shared(self) -> Any:
        return self.part

    async def offer(self) -> Offer:
        accounts = self.part.associations.accounts_of(self.user.name)
        return Offer(
            self.offered_profiles, accounts, {"base": "Python"}, cluster=await self.part.cluster_cache.cluster()
        )


class LoopThatIsWatched:
    """Records the processor time of each step of the event loop, how late a timer was, and garbage collections."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.late: list[float] = []
        self.collections: list[float] = []
        self._began = 0.0

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            self.steps.append(1000 * (time.thread_time() - began))

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        gc.callbacks.append(self._collected)
        task = asyncio.create_task(self._ticks())
        try:
            yield
        finally:
            task.cancel()
            gc.callbacks.remove(self._collected)
            asyncio.Handle._run = run  # type: ignore[method-assign]

    def _collected(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.collections.append(1000 * (time.thread_time() - self._began))

    async def _ticks(self) -> None:
        while True:
            due = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            self.late.append(1000 * (time.monotonic() - due))


async def measure_answers(hub: Hub, slurm: SlurmFromARecord, goal: float | None, more: dict[str, Any]) -> None:
    """Print what one answer costs, from its text to the verdicts on all sessions, without the hub."""
    before: QueueRows | None = None
    answers = slurm.answers
    reading, whole, passes = [], [], []
    for number in range(LOOKS + 1):
        at = number % 2
        began = time.process_time()
        before = run_to_end(parse_queue(answers[at], Separators.of(SEPARATOR_WORDS[at]), before))
        snapshot = Snapshot(time.monotonic(), time.monotonic(), before)
        read = time.process_time()
        hub.reconciler._on_snapshot(snapshot, "")
        await hub.reconciler._pass()
        end = time.process_time()
        reading.append(1000 * (read - began))
        passes.append(1000 * (end - read))
        whole.append(1000 * (end - began))
    verdicts = [hub.reconciler.verdict(session.id).liveness for session in hub.registry.open_sessions()]
    assert set(verdicts) == {Liveness.ALIVE}
    assert len(snapshot.ours) == len(verdicts)
    began = time.process_time()
    for _ in snapshot.read_in_steps():
        pass
    all_read = 1000 * (time.process_time() - began)
    eager = [1000 * seconds_to_parse_all_rows(answers[at], Separators.of(SEPARATOR_WORDS[at])) for at in (0, 1)]
    figure("scale_answer_to_snapshot", median(reading[1:]), "ms of processor", peer=median(eager), **more)
    figure("scale_answer_to_verdicts", median(whole[1:]), "ms of processor", goal=goal, peer=None, **more)
    figure("scale_first_answer_to_verdicts", whole[0], "ms of processor", **more)
    figure("scale_keeper_pass", median(passes[1:]), "ms of processor", goal=PASS, **more)
    figure("scale_other_peoples_jobs_read_when_asked", all_read, "ms of processor", **more)


async def measure_queries(hub: Hub, more: dict[str, Any]) -> None:
    """Print what a query costs the hub in total, and the first form after one."""
    asking, forms = [], []
    for _ in range(4):
        began = time.process_time()
        await hub.watcher._poll()  # from the command to the queue positions of our waiting jobs
        looked = time.process_time()
        cluster = await hub.cluster_cache.cluster()
        render_form(Offer(SpawnerOfMeasuredHub.offered_profiles, ("account0",), {"base": "Python"}, cluster=cluster))
        asking.append(1000 * (looked - began))
        forms.append(1000 * (time.process_time() - looked))
    figure("scale_whole_look", median(asking[1:]), "ms of processor", **more)
    figure("scale_first_form_after_a_look", median(forms[1:]), "ms of processor", **more)


def seconds_to_parse_all_rows(answer: bytes, cuts: Separators) -> float:
    """Return the processor seconds to parse every row of an answer completely, as earlier releases did."""
    began = time.process_time()
    rows = answer.decode("utf-8", "replace").split(cuts.row + "\n")[1:-1]
    jobs = {job.id: job for job in (read_job(row.split(cuts.field)) for row in rows)}
    Snapshot(0.0, 0.0, jobs)
    return time.process_time() - began


@contextlib.contextmanager
def fixed_separators() -> Iterator[None]:
    """Make each query use one of the two separators whose answers exist."""
    words, separator = itertools.cycle(SEPARATOR_WORDS), parse.separator
    parse.separator = lambda: next(words)
    try:
        yield
    finally:
        parse.separator = separator


async def measure_live(hub: Hub, application: ForgedHub, size: Size, seconds: float, more: dict[str, Any]) -> None:
    """Print how long requests wait while the hub queries the queue once a second."""
    asks = await pages_to_request(application)
    SpawnerOfMeasuredHub.part = hub
    await hub.associations.refresh()
    hub.watcher.start()
    hub.reconciler.start()
    await hub.watcher.fresh(timeout=120)
    await hub.cluster_cache.cluster()
    collections = ShortCollections(asyncio.get_running_loop().call_soon_threadsafe, logging.getLogger("scale"))
    collections.start()  # as the hub does when it starts
    collection_task = asyncio.create_task(collections.run())
    loop, queries = LoopThatIsWatched(), hub.watcher.queries["snapshot"]
    log_progress(f"Asking for pages with {size.jobs:,} jobs in the queue")
    cpu, began = time.process_time(), time.monotonic()
    async with loop.watched():
        page_requests = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("page_requests.py"))),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        args = {"base": application.base, "seconds": seconds, "asks": asks}
        out, _ = await page_requests.communicate(json.dumps(args).encode())
        assert page_requests.returncode == 0
        waits: dict[str, list[float]] = json.loads(out)
    wall = time.monotonic() - began
    cpu, queries = time.process_time() - cpu, hub.watcher.queries["snapshot"] - queries
    memory, empty = resident(), more.pop("empty")
    collection_task.cancel()
    collections.stop()
    await hub.reconciler.stop()
    await hub.watcher.stop()
    assert not hub.watcher.queries["failed"], hub.watcher.health
    more = {**more, "load": load()}
    figure("scale_longest_step_of_the_loop", max(loop.steps), "ms of processor", goal=STALL, **more)
    figure("scale_longest_collection", max(loop.collections, default=0.0), "ms of processor", goal=STALL, **more)
    figure("scale_timer_late_p99", statistics.quantiles(loop.late, n=100)[-1], "ms", **more)
    figure("scale_timer_late_max", max(loop.late), "ms", goal=STALL, **more)
    for name, took in waits.items():
        goal = API if name == "api" else None
        figure(f"scale_{name}_p50", median(took), "ms", n=len(took), **more)
        figure(f"scale_{name}_p95", p95(took), "ms", goal=goal, **more)
        figure(f"scale_{name}_max", max(took), "ms", **more)
    per_minute, theirs = 60 * queries / wall, 60 / POLL * size.sessions
    figure("scale_questions_a_minute", per_minute, "squeue", peer=theirs, note="the peer is calculated", **more)
    figure("scale_hub_busy", 100 * cpu / wall, "% of one processor", **more)
    figure("scale_memory", memory, "MiB", before=empty, **more)


async def pages_to_request(application: ForgedHub) -> list[dict[str, Any]]:
    """Return the pages to request, with interval, headers, and a text that each must contain."""
    browser = await application.browser("user0")
    cookies = "; ".join(f"{c.key}={c.value}" for c in browser.http.cookie_jar)
    page = {"Cookie": cookies, "Sec-Fetch-Mode": "navigate"}
    token = {"Authorization": f"token {application.app.users['user0'].new_api_token()}"}
    return [
        {"name": "api", "path": "/hub/api/user", "every": 0.05, "headers": token, "has": "user0"},
        {"name": "form", "path": "/hub/spawn", "every": 1.0, "headers": page, "has": "a100"},
        {"name": "home", "path": "/hub/home", "every": 1.0, "headers": page, "has": "user0"},
    ]


def fill_database(folder: Path, size: Size, entries: int) -> list[Session]:
    """Create a database with the ledger and the open sessions, and return the sessions."""
    url, ours = f"sqlite:///{folder}/carme.sqlite", sessions(size)
    engine = CarmeStore(url=url).open()
    with engine.begin() as connection:
        connection.execute(insert(session_table), [_to_row(session) for session in ours])
    engine.dispose()
    fill(url, entries)
    return ours


async def measure_queue(folder: Path, size: Size, entries: int, seconds: float, goal: float | None) -> None:
    """Measure one length of the queue, on an existing database and record."""
    more = {"sessions": size.sessions, "jobs": size.jobs, "entries": entries}
    engine = CarmeStore(url=f"sqlite:///{folder}/carme.sqlite").open()
    with tempfile.TemporaryDirectory(dir=folder) as own, fixed_separators():
        slurm, empty = SlurmFromARecord(folder), resident()
        install_handlers()
        hub = Hub(engine, slurm)
        await hub.registry.load()
        log_progress(f"Looking at {size.jobs:,} jobs, {(folder / 'queue.1').stat().st_size / 2**20:.1f} MiB")
        gc.collect()
        gc.freeze()
        await measure_answers(hub, slurm, goal, {**more, "load": load()})
        await measure_queries(hub, {**more, "load": load()})
        hub = Hub(engine, slurm)
        await hub.registry.load()
        async with forged_hub(own, SpawnerOfMeasuredHub, template_paths=[templates_path()]) as application:
            application.app.db.add_all(orm.User(name=f"user{n}") for n in range(1, size.users))
            application.app.db.commit()
            await measure_live(hub, application, size, seconds, {**more, "empty": round(empty)})
    engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000, help="entries of the ledger at full scale")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which pages are requested")
    parser.add_argument("--fewer", type=int, nargs="*", default=[10, 1], help="scales: 10 is ten times fewer of all")
    parser.add_argument("--jobs", type=int, help=argparse.SUPPRESS)  # in the folder of the process that started this
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    for fewer in args.fewer:
        size = Size(FULL.sessions // fewer, FULL.users // fewer, FULL.nodes // fewer, args.jobs or 0)
        entries = args.entries // fewer
        if args.folder:
            asyncio.run(
                measure_queue(args.folder, size, entries, args.seconds, GOALS.get(size.jobs) if fewer == 1 else None)
            )
            continue
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            ours = fill_database(Path(folder), size, entries)
            for jobs in QUEUES:
                SlurmFromARecord(Path(folder)).record(replace(size, jobs=jobs // fewer), ours)
                own = [f"--fewer={fewer}", f"--jobs={jobs // fewer}", f"--folder={folder}"]
                same = [f"--entries={args.entries}", f"--seconds={args.seconds}"]
                subprocess.run([sys.executable, __file__, *own, *same], check=True)


if __name__ == "__main__":
    main()
