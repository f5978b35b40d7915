"""Words of the form: what a profile gives, and what to do where none is offered."""

from __future__ import annotations

from collections.abc import Sequence

from carme_hub.domain.sessions.profile import Profile
from carme_hub.spawners.form.durations import duration


def why_empty(accounts: Sequence[str] | None) -> str:
    """Return what to do where no profile is offered."""
    if accounts is not None and not accounts:
        return (
            "You have no Slurm account yet. Ask your project’s coordinator or the cluster’s support to add you to one."
        )
    if accounts is None:
        return "No profile is offered to your groups. Ask an administrator which group you need."
    return (
        "No profile is offered to your groups and Slurm accounts. "
        "Ask the cluster’s support which group or account you need."
    )


def gives(profile: Profile, virtual: bool) -> list[str]:
    """Return the resources of a profile, as short phrases."""
    gives = []
    if profile.gpus:
        label = "virtual " if virtual else ""
        each = " or ".join(f"{profile.gpus.most(t)} × {label}{t}" for t in profile.gpus.types)
        gives.append(each if profile.gpus.count.fixed else f"up to {each}")
    cpus, memory, time_limit = profile.cpus, profile.memory_gib, profile.time_minutes
    for limit, max_text in (
        (cpus, "1 CPU" if cpus.max == 1 else f"{cpus.max} CPUs"),
        (memory, f"{memory.max} GiB of memory"),
        (time_limit, duration(time_limit.max)),
    ):
        gives.append(max_text if limit.fixed else f"up to {max_text}")
    return gives
