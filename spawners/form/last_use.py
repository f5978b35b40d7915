"""What the last sessions with the image and the working folder that the form shows have used, and a choice that fits.

One line with a link that fills the form in. Nothing is chosen without a click, and what fits is never less than what
the last few used and the margin of ``domain.activity.advice``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from carme_hub.domain.activity.advice import MORE_MEMORY, OUT_OF_MEMORY, Needs, advice
from carme_hub.domain.activity.efficiency import count, gib
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.domain.sessions.profile import Limit, Profile
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.form.form import Offer, shown_request


@dataclass(frozen=True, slots=True)
class LastUse:
    """What the form says: ``text``, and a link that fills in what ``what`` says."""

    text: str
    what: str
    link: str


def last_use(
    offer: Offer,
    options: Mapping[str, object] | None,
    last: Mapping[str, object] | None,
    finished: Sequence[FinishedJob],
    here_url: str,
) -> LastUse | None:
    """Return the line of the form; None where nothing better than what is filled in is known.

    Args:
        options, last: as ``render_form`` takes them. finished: jobs of the user, the newest first.
    """
    shown = shown_request(offer, options, last) if finished else None
    if shown is None:
        return None
    same = [job for job in finished if job.interactive and (job.image, job.folder) == _kind(shown)]
    if not same:
        return None
    job = same[0]
    said = advice(job, finished)
    if said.saves not in ("gpus", "memory", "cpus", "more"):
        return None
    found = fitting(offer, shown, _wanted(job, said.needs), job.gpu_type)
    if found is None or _size(found[1]) == _size(shown):
        return None
    profile, request, choice = found
    where = f" in {shown.working_folder}" if shown.working_folder else ""
    what = f"{profile.display_name} with {_gives(request, virtual=offer.virtual)}"
    more = f" {said.suggestion}" if said.saves == "more" else ""
    text = f"Last time with image {shown.image}{where}: {said.line}{more} {what} fits."
    link = here_url + "?" + urlencode({f"opt-{name}": value for name, value in choice.items()})
    return LastUse(text, what, link)


def _kind(request: Request) -> tuple[str, str]:
    return request.image, request.working_folder


def _size(request: Request) -> tuple[object, ...]:
    return request.profile, request.gpus, request.cpus, request.memory_mib


def _gives(request: Request, *, virtual: bool) -> str:
    gpus = f"{request.gpus.count} × {'virtual ' if virtual else ''}{request.gpus.type}, " if request.gpus else ""
    return f"{gpus}{count(request.cpus, 'CPU')} and {gib(request.memory_mib)} of memory"


def _wanted(job: FinishedJob, needs: Needs) -> Needs:
    """Return what a choice must have: what is known to be needed, and otherwise what the job had."""
    asked = job.asked
    if job.state == OUT_OF_MEMORY:
        return Needs(asked.gpus, 1, asked.cpus, memory_mib=round(asked.memory_mib * MORE_MEMORY))
    return Needs(
        gpus=asked.gpus if needs.gpus is None else needs.gpus,
        cpus=asked.cpus if needs.cpus is None else needs.cpus,
        memory_mib=asked.memory_mib if needs.memory_mib is None else needs.memory_mib,
    )


def fitting(
    offer: Offer, shown: Request, wanted: Needs, gpu_type: str
) -> tuple[Profile, Request, dict[str, object]] | None:
    """Return the smallest choice that has what is wanted, with the image, folder, account and time that are shown."""
    found = []
    for place, profile in enumerate(offer.profiles):
        for choice in _choices(profile, shown, wanted, gpu_type):
            request = offer.examine(choice)[0]
            if request is not None and _has(request, shown, wanted, gpu_type):
                size = (request.gpus.count, request.memory_mib, request.cpus, place)
                found.append((size, profile, request, choice))
    return min(found, key=lambda each: each[0])[1:] if found else None


def _has(request: Request, shown: Request, wanted: Needs, gpu_type: str) -> bool:
    # Another type of GPU may have less memory, and what the job needs of that is not known.
    same_type = not wanted.gpus or request.gpus.type == gpu_type
    return (
        same_type
        and _kind(request) == _kind(shown)
        and request.gpus.count >= (wanted.gpus or 0)
        and request.cpus >= (wanted.cpus or 0)
        and request.memory_mib >= (wanted.memory_mib or 0)
        and request.time_limit >= shown.time_limit
    )


def _choices(profile: Profile, shown: Request, wanted: Needs, gpu_type: str) -> Iterator[dict[str, object]]:
    """Yield options of a profile that may fit, one for each way to name the image."""
    sizes = {
        "cpus": least(profile.cpus, wanted.cpus or 1),
        "memory_gib": least(profile.memory_gib, -(-(wanted.memory_mib or 1) // 1024)),
        "time_minutes": least(profile.time_minutes, shown.time_limit),
    }
    if profile.gpus is not None:
        sizes["gpus"] = least(profile.gpus.count, wanted.gpus or 0)
    if None in sizes.values():
        return
    same: dict[str, object] = {"profile": profile.slug, **{name: str(size) for name, size in sizes.items()}}
    if profile.gpus is not None and gpu_type in profile.gpus.types:
        same["gpu_type"] = gpu_type
    for name in ("account", "working_folder"):
        if getattr(shown, name):
            same[name] = getattr(shown, name)
    option = next((each for each in profile.options if each.name == "image"), None)
    for image in [choice.name for choice in option.choices] if option is not None else [shown.image]:
        yield {**same, "image": image}


def least(limit: Limit, needed: int) -> int | None:
    """Return the smallest value that a limit allows and that is not below what is needed."""
    values = limit.choices or (max(limit.min, needed),)
    return min((value for value in values if value >= needed and limit.allows(value)), default=None)
