"""Metrics that are read from the hub's memory at each scrape: sessions, Slurm, the reconciler, and what is ready.

No scrape queries Slurm or a database. No label has a user, a session or a job in it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.sessions.liveness import Liveness
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.scrape import Scrape
from carme_hub.spawners.hub.monitoring.readiness import Readiness
from carme_hub.spawners.hub.shared import HubContext

#: Label values.
KINDS, STATES = ("session", "companion", "batch"), ("starting", "running", "ending")


class HubCollector(Collector):
    """Reads one hub. ``hub`` returns its context, None before its start and on a hub without Slurm."""

    def __init__(self, hub: Callable[[], HubContext | None], readiness: Callable[[], Readiness | None]) -> None:
        self._hub, self._readiness = hub, readiness

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values: the hub has not started when this is registered."""
        return _read(None, None)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the hub; those of which nothing is known are empty."""
        return _read(self._hub(), self._readiness())


def _read(hub: HubContext | None, readiness: Readiness | None) -> Iterable[Metric]:
    scrape = Scrape("carme_")
    ready = scrape.gauge("ready", "1 if a part of the hub answered when last asked, else 0", ("part",))
    for part, said in readiness.last.items() if readiness is not None else ():
        ready.add_metric((part,), float(not said))
    _sessions(scrape, hub)
    _slurm(scrape, hub)
    _reconciler(scrape, hub)
    return scrape.collect()


def _sessions(scrape: Scrape, hub: HubContext | None) -> None:
    family = scrape.gauge("sessions", "Sessions that have not ended, by kind and state", ("kind", "state"))
    there, now = hub is not None, time.time()
    opened = hub.registry.open_sessions() if hub is not None else ()
    counts = Counter((_kind(each), _state(each)) for each in opened)
    for kind in KINDS if there else ():
        for state in STATES:
            family.add_metric((kind, state), counts[kind, state])
    starting = [now - each.created for each in opened if _state(each) == "starting" and not each.parent]
    about = "How long the oldest start of a server has taken so far"
    scrape.value("sessions_longest_start_seconds", about, max(starting, default=0.0) if there else None)
    ending = [now - each.cancel_wanted for each in opened if each.cancel_wanted]
    about = "How long ago the oldest end that is not reached yet was wanted"
    scrape.value("sessions_longest_end_seconds", about, max(ending, default=0.0) if there else None)
    verdicts = [hub.reconciler.verdict(each.id) for each in opened if each.job_id] if hub is not None else []
    about = "Sessions of which Slurm's answers prove neither that their job runs nor that it ended"
    unknown = sum(each.liveness is Liveness.UNKNOWN for each in verdicts)
    scrape.value("sessions_unknown", about, unknown if there else None)
    second = sum(bool(each.others) for each in verdicts)
    scrape.value("sessions_with_second_job", "Sessions with two jobs", second if there else None)


def _kind(session: Session) -> str:
    return "batch" if session.request.batch else "companion" if session.parent else "session"


def _state(session: Session) -> str:
    if session.is_ending:
        return "ending"
    return "running" if session.state is SessionState.RUNNING else "starting"


def _slurm(scrape: Scrape, hub: HubContext | None) -> None:
    watcher, now = hub.watcher if hub is not None else None, time.monotonic()
    latest = watcher.latest if watcher is not None else None
    # Before its first answer or failure nothing is known of Slurm, which a watcher takes for answering.
    health = watcher.health if watcher is not None and (latest is not None or not watcher.health.ok) else None
    answers = None if health is None else float(health.ok)
    scrape.value("slurm_answers", "1 if Slurm's controller answers the hub, else 0", answers)
    silent = None if health is None else 0.0 if health.ok else now - health.since
    scrape.value("slurm_silent_seconds", "For how long it has not answered; 0 while it answers", silent)
    age = None if latest is None else now - latest.asked
    scrape.value("slurm_snapshot_age_seconds", "Age of what pages show of Slurm's queue", age)
    queries = scrape.counter("slurm_queries", "Queries of the hub to the controller", ("kind",))
    for kind in ("snapshot", "nodes", "failed"):
        if watcher is not None:
            queries.add_metric((kind,), watcher.queries[kind])
    # While Slurm is silent, the jobs of its last answer may have ended long ago.
    known = latest if health is not None and health.ok else None
    scrape.value("slurm_jobs", "Jobs that the controller knows", None if known is None else len(known.jobs))
    jobs = scrape.gauge("slurm_own_jobs", "Jobs of the hub in Slurm, by phase", ("phase",))
    if known is not None:
        phases = Counter(job.phase for job in known.ours)
        for phase in (Phase.WAITING, Phase.ACTIVE, Phase.ENDING):
            jobs.add_metric((phase.value,), phases[phase])


def _reconciler(scrape: Scrape, hub: HubContext | None) -> None:
    now, reconciler = time.monotonic(), hub.reconciler if hub is not None else None
    passed = reconciler.passed if reconciler is not None else None
    about = "Time since all sessions were last compared with Slurm's answer"
    scrape.value("reconciler_age_seconds", about, None if passed is None else now - passed)
    # While Slurm is silent the last ones may have ended long ago.
    answers = hub is not None and hub.watcher.health.ok
    orphans = reconciler.orphans if reconciler is not None and answers else None
    about = "Jobs that run although their session has ended"
    scrape.value("orphaned_jobs", about, None if orphans is None else len(orphans))
    oldest = None if orphans is None else max((now - since for since in orphans.values()), default=0.0)
    scrape.value("orphaned_jobs_oldest_seconds", "How long the oldest of them has been seen", oldest)
    administration = hub.administration if hub is not None else None
    stops = None if administration is None else len(administration.stops())
    scrape.value("starts_stopped", "Rules of administrators by which nothing new starts", stops)
