"""Metrics that are read from the hub's memory at each scrape: sessions, Slurm, the reconciler, and what is ready.

No scrape queries Slurm or a database. No label has a user, a session or a job in it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.sessions.liveness import Liveness
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.spawners.hub.monitoring.readiness import Readiness
from carme_hub.spawners.hub.shared import HubContext

Families = Iterator[GaugeMetricFamily | CounterMetricFamily]
#: Label values.
KINDS, STATES = ("session", "companion", "batch"), ("starting", "running", "ending")


class HubCollector(Collector):
    """Reads one hub. ``hub`` returns its context, None before its start and on a hub without Slurm."""

    def __init__(self, hub: Callable[[], HubContext | None], readiness: Callable[[], Readiness | None]) -> None:
        self._hub, self._readiness = hub, readiness

    def describe(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """Return the metrics without values, so that their names are known before the hub has started."""
        return [*_sessions(None), *_slurm(None), *_reconciler(None), *_ready(None)]

    def collect(self) -> Families:
        """Yield the metrics of a hub that has started."""
        hub, readiness = self._hub(), self._readiness()
        if hub is not None:
            yield from _sessions(hub)
            yield from _slurm(hub)
            yield from _reconciler(hub)
        if readiness is not None:
            yield from _ready(readiness)


def _gauge(name: str, about: str, value: float | None) -> GaugeMetricFamily:
    """Return a metric without labels; None leaves its value out."""
    family = GaugeMetricFamily(name, about)
    if value is not None:
        family.add_metric((), value)
    return family


def _sessions(hub: HubContext | None) -> Families:
    family = GaugeMetricFamily(
        "carme_sessions", "Sessions that have not ended, by kind and state", labels=("kind", "state")
    )
    opened = hub.registry.open_sessions() if hub is not None else ()
    counts = Counter((_kind(each), _state(each)) for each in opened)
    for kind in KINDS if hub is not None else ():
        for state in STATES:
            family.add_metric((kind, state), counts[kind, state])
    yield family
    now = time.time()
    waiting = [now - each.created for each in opened if _state(each) == "starting" and not each.parent]
    ending = [now - each.cancel_wanted for each in opened if each.cancel_wanted]
    value = None if hub is None else max(waiting, default=0.0)
    yield _gauge("carme_sessions_longest_start_seconds", "How long the oldest start has taken so far", value)
    value = None if hub is None else max(ending, default=0.0)
    yield _gauge("carme_sessions_longest_end_seconds", "How long ago the oldest end that is pending was wanted", value)
    verdicts = [hub.reconciler.verdict(each.id) for each in opened if each.job_id] if hub is not None else []
    unknown = sum(each.liveness is Liveness.UNKNOWN for each in verdicts)
    about = "Sessions with a job of which Slurm's answers prove neither that they run nor that they ended"
    yield _gauge("carme_sessions_unknown", about, None if hub is None else unknown)
    second = sum(bool(each.others) for each in verdicts)
    yield _gauge("carme_sessions_with_second_job", "Sessions with two jobs", None if hub is None else second)


def _kind(session: Session) -> str:
    return "batch" if session.request.batch else "companion" if session.parent else "session"


def _state(session: Session) -> str:
    if session.is_ending:
        return "ending"
    return "running" if session.state is SessionState.RUNNING else "starting"


def _slurm(hub: HubContext | None) -> Families:
    watcher, now = hub.watcher if hub is not None else None, time.monotonic()
    health = watcher.health if watcher is not None else None
    latest = watcher.latest if watcher is not None else None
    answers = None if health is None else float(health.ok)
    yield _gauge("carme_slurm_answers", "1 if Slurm's controller answers, else 0", answers)
    silent = None if health is None else 0.0 if health.ok else now - health.since
    yield _gauge("carme_slurm_silent_seconds", "For how long it has not answered, 0 if it answers", silent)
    age = None if latest is None else now - latest.asked
    yield _gauge("carme_slurm_snapshot_age_seconds", "Age of what pages show of the queue", age)
    queries = CounterMetricFamily("carme_slurm_queries", "Queries to the controller by the hub", labels=("kind",))
    for kind in ("snapshot", "nodes", "failed") if watcher is not None else ():
        queries.add_metric((kind,), watcher.queries[kind] if watcher is not None else 0)
    yield queries
    yield _gauge("carme_slurm_jobs", "Jobs that the controller knows", None if latest is None else len(latest.jobs))
    jobs = GaugeMetricFamily("carme_slurm_own_jobs", "Jobs of sessions in Slurm, by phase", labels=("phase",))
    phases = Counter(job.phase for job in latest.ours) if latest is not None else Counter[Phase]()
    for phase in (Phase.WAITING, Phase.ACTIVE, Phase.ENDING) if latest is not None else ():
        jobs.add_metric((phase.value,), phases[phase])
    yield jobs


def _reconciler(hub: HubContext | None) -> Families:
    now = time.monotonic()
    passed = None if hub is None else hub.reconciler.passed
    about = "Time since all sessions were last compared with Slurm's answer"
    yield _gauge("carme_reconciler_age_seconds", about, None if passed is None else now - passed)
    orphans = hub.reconciler.orphans if hub is not None else {}
    count = None if hub is None else len(orphans)
    yield _gauge("carme_orphaned_jobs", "Jobs of sessions that have ended, which run nevertheless", count)
    oldest = None if hub is None else max((now - since for since in orphans.values()), default=0.0)
    yield _gauge("carme_orphaned_jobs_oldest_seconds", "How long the oldest of them has been seen", oldest)
    administration = hub.administration if hub is not None else None
    stops = None if administration is None else len(administration.stops())
    yield _gauge("carme_starts_stopped", "Rules of administrators that stop new starts", stops)


def _ready(readiness: Readiness | None) -> Families:
    family = GaugeMetricFamily("carme_ready", "1 if a part of the hub answered when last asked, else 0", labels=("part",))
    for part, said in readiness.last.items() if readiness is not None else ():
        family.add_metric((part,), float(not said))
    yield family
