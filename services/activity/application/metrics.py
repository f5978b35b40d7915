"""Metrics of what jobs use for Prometheus: by partition and type of GPU, and never by user or session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily

from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.sessions.session import Session
from carme_hub.scrape import Scrape


@dataclass
class _Use:
    """Sums of one partition and type of GPU; lists have what is known."""

    sessions: int = 0
    silent: int = 0
    gpus: int = 0
    utilisation: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    power: list[float] = field(default_factory=list)


def metrics(sessions: Iterable[Session], minutes: Mapping[str, Mapping[str, tuple[Minute, ...]]]) -> Scrape:
    """Return the metrics of this moment.

    Args:
        sessions: open ones with a job. minutes: of the last few minutes, by session and node.
    """
    found: dict[tuple[str, str], _Use] = {}
    for session in sessions:
        use = found.setdefault((session.request.partition, session.request.gpus.type), _Use())
        use.sessions += 1
        nodes = minutes.get(session.id, {})
        use.silent += not nodes
        for some in nodes.values():
            for gpu in some[-1].gpus:
                _add(use, gpu)
    scrape = Scrape("carme_activity_")

    def gauge(name: str, about: str) -> GaugeMetricFamily:
        return scrape.gauge(name, about, ("partition", "gpu_type"))

    sessions_gauge = gauge("sessions", "Sessions with a job")
    silent = gauge("sessions_silent", "Sessions with a job that have reported nothing for some minutes")
    gpus = gauge("gpus", "GPUs that are reported")
    unknown = gauge("gpus_unknown", "Reported GPUs whose use is not known, such as MIG devices")
    utilisation = gauge("gpu_utilisation_percent", "Mean utilisation of the GPUs whose use is known")
    memory = gauge("gpu_memory_mib", "Memory of GPUs that is used, where it is known")
    power = gauge("gpu_power_watts", "Power of GPUs, where it is known")
    for labels, use in sorted(found.items()):
        sessions_gauge.add_metric(labels, use.sessions)
        silent.add_metric(labels, use.silent)
        gpus.add_metric(labels, use.gpus)
        unknown.add_metric(labels, use.gpus - len(use.utilisation))
        if use.utilisation:
            utilisation.add_metric(labels, sum(use.utilisation) / len(use.utilisation))
        memory.add_metric(labels, sum(use.memory))
        power.add_metric(labels, sum(use.power))
    return scrape


def _add(use: _Use, gpu: GpuMinute) -> None:
    use.gpus += 1
    use.utilisation += [gpu.utilisation] if gpu.utilisation is not None else []
    use.memory += [gpu.memory] if gpu.memory is not None else []
    use.power += [gpu.power] if gpu.power is not None else []
