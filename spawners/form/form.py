"""Renders the options form as HTML: the offer, the expected start, the choice, and its problems.

The form works without JavaScript: each profile's controls have names of their own (see ``options``), CSS shows the
controls of the chosen card, and links fill suggestions in. ``form.js`` only refreshes sentences and fills suggestions
in. There are no inline scripts or styles, so that a site may set a strict Content-Security-Policy. Jinja escapes all
values. The spawn page and the availability REST call these functions.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from carme_hub.domain.folders.mounts import Mountable
from carme_hub.domain.scaling_curve import ScalingCurve
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.domain.sessions.profile import MISSING_FOLDER, UNLISTED, Limit, Profile
from carme_hub.domain.sessions.profile_choice import Problem, default_profile, examine, require_valid
from carme_hub.domain.sessions.session import Request
from carme_hub.domain.staging.entries import ScratchOffer
from carme_hub.paths import share_folder
from carme_hub.spawners.form.cost import Cost, RemainingBudget
from carme_hub.spawners.form.durations import clock, duration, times_to_choose
from carme_hub.spawners.form.folders import Control, folder_controls, still_shared
from carme_hub.spawners.form.image_starts import OfferedStarts, image_lines
from carme_hub.spawners.form.options import SEPARATOR
from carme_hub.spawners.form.scaling_curves import curves_shown
from carme_hub.spawners.form.slots import Bookings, reservation_choices, split_booking
from carme_hub.spawners.form.stage_controls import stage_controls
from carme_hub.spawners.form.start_estimate import prospect
from carme_hub.spawners.form.words import gives, why_empty


@dataclass(frozen=True, slots=True)
class Offer:
    """Everything that the form and its check need for one user.

    Attributes:
        profiles: the profiles for this user (``domain.sessions.profile_choice.offered_profiles``).
        accounts: the user's Slurm accounts, the default account first; None = the site has no accounts.
        images: name to description of the site's images, the default image first.
        reservations: reservations that the user may use besides those of a profile.
        cluster: the shared state of the cluster.
        virtual: the GPUs are a sandbox's virtual GPUs, labelled so. why_empty: what to do if no profile is offered.
        source: the name of the system that reports free resources. left: the rest of each account; {} without quotas.
        bookings: the bookings of this user; None without reservations.
        curves: this user's scaling curves, the newest first. makes_folders: whether a missing folder can be made.
        scratch: what scratch sessions may ask for; None = they get none, and copy no data.
        stopped: returns why nothing like a request can be started now, "" = it can; None = nothing ever stops it.
        starts: how sessions start by image; None = that is not known here.
        folders: shared folders that the user may mount. remembered: the choice of the last start, by profile.
    """

    profiles: tuple[Profile, ...]
    accounts: Sequence[str] | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    reservations: tuple[str, ...] = ()
    cluster: Cluster = field(default_factory=Cluster)
    virtual: bool = False
    why_empty: str = ""
    source: str = "Slurm"
    left: Mapping[str, RemainingBudget] = field(default_factory=dict)
    bookings: Bookings | None = None
    curves: tuple[ScalingCurve, ...] = ()
    makes_folders: bool = True
    scratch: ScratchOffer | None = None
    stopped: Callable[[Request], str] | None = None
    starts: OfferedStarts | None = None
    folders: tuple[Mountable, ...] = ()
    remembered: Mapping[str, str] = field(default_factory=dict)

    def choose(self, options: Mapping[str, object]) -> Request:
        """Return the request for these options.

        Raises:
            ProfileNotAllowed: an option is not valid. NoAccount: the only problem is that no account may be charged.
        """
        return require_valid(*self.examine(options))

    def examine(self, options: Mapping[str, object]) -> tuple[Request | None, tuple[Problem, ...]]:
        """Return the request for these options, in the booking that matches, or None and the problems."""
        options, asked = split_booking(options) if self.bookings is not None else (options, "")
        request, problems = examine(
            self.profiles,
            options,
            accounts=self.accounts,
            images=tuple(self.images),
            reservations=self.reservations,
            folders=self.folders,
            scratch=self.scratch,
        )
        if request is not None and (wrong := self._stopped(request) or self._missing_node(request)):
            return None, (wrong,)
        if request is None or self.bookings is None:
            return request, problems
        return self.bookings.place(request, asked)

    def _stopped(self, request: Request) -> Problem | None:
        why = self.stopped(request) if self.stopped is not None else ""
        return Problem("profile", why) if why else None

    def _missing_node(self, request: Request) -> Problem | None:
        nodes = {node.name for node in self.cluster.partition_nodes(request.partition).nodes}
        if not request.node or not self.cluster.known or request.node in nodes:
            return None
        return Problem("node", f"There is no node {request.node} for this profile. Leave it empty, or name another.")


def render_form(
    offer: Offer,
    *,
    options: Mapping[str, object] | None = None,
    last: Mapping[str, object] | None = None,
    problems: Sequence[Problem] = (),
    from_link: bool = False,
    live_url: str = "",
    here_url: str = "",
    cost: Cost | None = None,
    last_use: object = None,
    now: float | None = None,
) -> str:
    """Return the inside of the ``<form>`` element as HTML.

    Args:
        options: user options to fill in, from a link or a refused post.
        last: the options of the user's last start; used if ``options`` is None and they are still valid.
        problems: shown at their fields and in a summary.
        from_link: show that a link filled the form in and that nothing was started.
        live_url: the URL from which ``form.js`` reads sentences; "" = the page is not refreshed.
        here_url: this page without arguments, for links with a suggestion.
        cost: of the options that are filled in; None without quotas.
        last_use: what sessions like this one have used (``form.last_use``); None = nothing better is known.
    """
    moment = time.time() if now is None else now
    options = _filled_in(offer, options, last)
    chosen = _chosen(offer, options)
    context = {
        "cards": [_card(offer, p, options if p is chosen else {}, problems, moment, here_url) for p in offer.profiles],
        "chosen": chosen.slug if chosen else "",
        "problems": [{"message": p.message, "target": _target(offer, chosen, p)} for p in problems],
        "from_link": from_link,
        "live_url": live_url,
        "silent_since": clock(offer.cluster.silent_since, moment) if offer.cluster.silent_since else "",
        "known": offer.cluster.known,
        "virtual": offer.virtual,
        "source": offer.source,
        "why_empty": offer.why_empty or why_empty(offer.accounts),
        "cost": cost,
        "last_use": last_use,
        "cost_link": _cost_link(cost, chosen, options, here_url),
    }
    return environment().get_template("carme_form.html").render(context)


def shown_request(
    offer: Offer, options: Mapping[str, object] | None, last: Mapping[str, object] | None = None
) -> Request | None:
    """Return the request for the options that the form shows, None if they are not valid."""
    options = _filled_in(offer, options, last)
    chosen = _chosen(offer, options)
    return offer.examine(options or {"profile": chosen.slug})[0] if chosen else None


def without_impossible_suggestion(
    offer: Offer, cost: Cost, options: Mapping[str, object] | None, last: Mapping[str, object] | None = None
) -> Cost:
    """Return a cost without its suggestion if the profile does not allow that choice."""
    options = _filled_in(offer, options, last)
    chosen = _chosen(offer, options)
    if cost.options and chosen and offer.examine({**options, "profile": chosen.slug, **cost.options})[0] is None:
        return replace(cost, what="", options=None)
    return cost


def live_answer(offer: Offer, options: Mapping[str, object], now: float) -> dict[str, object]:
    """Return the JSON for ``form.js``: a sentence for each profile, with the present options for the chosen one."""
    cluster = offer.cluster
    request, problems = offer.examine(options)
    chosen = _chosen(offer, options)
    profiles = {
        p.slug: _prospect(offer, p, request if p is chosen else None, now, suggest=p is chosen) for p in offer.profiles
    }
    return {
        "profiles": profiles,
        "problems": [{"field": p.field, "message": p.message} for p in problems],
        "silent_since": cluster.silent_since or None,
        "silent": clock(cluster.silent_since, now) if cluster.silent_since else "",
    }


def _filled_in(
    offer: Offer, options: Mapping[str, object] | None, last: Mapping[str, object] | None
) -> Mapping[str, object]:
    """Return the options that the form shows: ``options``, or the last start's if they are still valid."""
    if options is not None:
        return options
    last = {name: value for name, value in (last or {}).items() if name != "node"}  # that was for one job
    last = still_shared(last, offer.folders)
    return last if last and offer.examine(last)[0] is not None else {}


def _chosen(offer: Offer, options: Mapping[str, object]) -> Profile | None:
    named = next((p for p in offer.profiles if p.slug == options.get("profile")), None)
    return named or default_profile(offer.profiles)


def _field_id(slug: str, key: str) -> str:
    return f"carme-{slug}-{key}"


def _target(offer: Offer, chosen: Profile | None, problem: Problem) -> str:
    """Return the id of the control to which a problem belongs, "" for none."""
    if chosen is None or not problem.field:
        return ""
    if problem.field == "profile":
        return f"carme-{chosen.slug}"
    keys = {control["key"] for control in _controls(offer, chosen, {}, ())}
    return _field_id(chosen.slug, problem.field) if problem.field in keys else ""


def _cost_link(cost: Cost | None, chosen: Profile | None, options: Mapping[str, object], here_url: str) -> str:
    """Return a link that fills in the largest choice that would be admitted."""
    if cost is None or not cost.options or chosen is None:
        return ""
    new = {**options, "profile": chosen.slug, **cost.options}
    return here_url + "?" + urlencode({f"opt-{key}": value for key, value in new.items()})


def _card(
    offer: Offer,
    profile: Profile,
    options: Mapping[str, object],
    problems: Sequence[Problem],
    now: float,
    here_url: str,
) -> dict[str, object]:
    request = offer.examine({**options, "profile": profile.slug})[0] if options else None
    seen = _prospect(offer, profile, request, now, suggest=True)
    changes = seen["suggestion"]
    link = ""
    if isinstance(changes, dict):
        new = {**options, "profile": profile.slug, **changes["options"]}
        link = here_url + "?" + urlencode({f"opt-{key}": value for key, value in new.items()})
    return {
        "slug": profile.slug,
        "id": f"carme-{profile.slug}",
        "name": profile.display_name,
        "description": profile.description,
        "gives": gives(profile, offer.virtual),
        "prospect": seen,
        "link": link,
        "controls": _controls(offer, profile, options, problems if options else ()),
        "curves": curves_shown(offer.curves, profile, options, offer.images, now),
    }


def _prospect(
    offer: Offer, profile: Profile, request: Request | None, now: float, *, suggest: bool
) -> dict[str, object]:
    """Return sentence, state and suggestion for a request, or for the profile's defaults without one."""
    usual, problems = offer.examine({"profile": profile.slug}) if request is None else (request, ())
    if usual is None:
        why = problems[0].message if offer.stopped is not None and problems else ""
        state = "never" if why else "unknown"
        return {"sentence": why, "state": state, "expected": None, "suggestion": None, "image": ""}
    more = {"virtual": offer.virtual, "suggest": suggest}
    image = offer.starts.sentence(offer.cluster, usual) if offer.starts is not None else ""
    return {**prospect(offer.cluster, profile, usual, now, bookings=offer.bookings, **more), "image": image}


def _controls(
    offer: Offer, profile: Profile, options: Mapping[str, object], problems: Sequence[Problem]
) -> list[Control]:
    """Return the controls of one card: only those with something to choose."""
    wrong = {p.field: p.message for p in problems}
    settled = set(profile.override).union(*(c.override for o in profile.options for c in o.choices))
    controls: list[Control] = []

    def add(key: str, label: str, kind: str, value: object, **more: object) -> None:
        asked = options.get(key, "")
        controls.append(
            {
                "key": key,
                "id": _field_id(profile.slug, key),
                "name": f"{profile.slug}{SEPARATOR}{key}",
                "label": label,
                "kind": kind,
                "value": str(value if asked == "" else asked),
                "error": wrong.get(key, ""),
                "choices": [],
                "unit": "",
                "hint": "",
                **more,
            }
        )

    def number(key: str, label: str, limit: Limit, unit: str, **more: object) -> None:
        if limit.fixed or key in settled:
            return
        listed = limit.choices or (range(limit.min, limit.max + 1) if limit.max - limit.min < 16 else ())
        if listed:
            choices = [{"value": str(n), "label": f"{n}{unit}"} for n in listed]
            add(key, label, "select", limit.default, choices=choices, **more)
        else:
            hint = f"{limit.min} to {limit.max}"
            add(key, label, "number", limit.default, min=limit.min, max=limit.max, unit=unit, hint=hint, **more)

    def names(key: str, label: str, values: Sequence[tuple[str, str]], least: int = 2) -> None:
        if len(values) >= least and key not in settled:
            choices = [{"value": value, "label": text} for value, text in values]
            add(key, label, "select", values[0][0], choices=choices)

    for option in profile.options:
        choices = [{"value": c.name, "label": c.display_name, "hint": c.description} for c in option.choices]
        if option.unlisted:
            choices.append(
                {"value": option.name + UNLISTED, "label": option.unlisted.display_name_in_choices, "hint": ""}
            )
        if len(choices) > 1:
            add(option.name, option.display_name, "select", option.default, choices=choices)
        if option.unlisted:
            key, hint = option.name + UNLISTED, option.unlisted.description or option.unlisted.pattern_message
            add(key, option.unlisted.display_name, "text", "", hint=hint, only_with=option.name)
    for one in profile.fields:
        none = [] if one.default else [{"value": "", "label": "none"}]
        choices = [*none, *({"value": value, "label": text} for value, text in one.choices.items())]
        kind = {"hint": one.description, "choices": choices} if one.choices else {"hint": one.description}
        add(one.name, one.display_name, "select" if one.choices else "text", one.default, **kind)
    if profile.gpus:
        virtual = "virtual " if offer.virtual else ""
        if len(profile.gpus.types) > 1 and "gpu_type" not in settled:
            types = [{"value": t, "label": virtual + t, "most": profile.gpus.most(t)} for t in profile.gpus.types]
            add("gpu_type", "GPU type", "select", profile.gpus.default_type, choices=types)
        number("gpus", "Virtual GPUs" if offer.virtual else "GPUs", profile.gpus.count, "")
    if not profile.time_minutes.fixed and "time_minutes" not in settled:
        choices = [
            {"value": str(m), "label": duration(m)}
            for m in times_to_choose(profile.time_minutes, options.get("time_minutes"))
        ]
        add("time_minutes", "Time limit", "select", profile.time_minutes.default, choices=choices)
    number("cpus", "CPUs", profile.cpus, "")
    number("memory_gib", "Memory", profile.memory_gib, " GiB")
    if not any(o.name == "image" for o in profile.options):
        names("image", "Image", image_lines(offer.images, offer.starts, offer.cluster, profile))
    mine = [a for a in offer.accounts or () if not profile.accounts or a in profile.accounts]
    names("account", "Account to charge", [(a, f"{a}: {offer.left[a].text}" if a in offer.left else a) for a in mine])
    names("reservation", "Reservation", reservation_choices(profile, offer.reservations, offer.bookings))
    if options.get("node"):
        add("node", "Node", "text", "", hint="The server waits until this node has room. Empty: any node.")
    if "working_folder" not in settled:
        where = "Empty: your home folder. Or a path below it, or one from /."
        add("working_folder", "Working folder", "text", "", hint=where)
        # A missing folder may be why the last start failed.
        if options.get("working_folder") and offer.makes_folders and "missing_folder" not in settled:
            labels = ("do not start, and show an error", "make it")
            choices = [{"value": v, "label": text} for v, text in zip(MISSING_FOLDER, labels, strict=True)]
            add("missing_folder", "If that folder does not exist", "select", MISSING_FOLDER[0], choices=choices)
    if "folders" not in settled:
        chosen = (
            options["folders"] if "folders" in options else "" if options else offer.remembered.get(profile.slug, "")
        )
        controls += folder_controls(profile.slug, offer.folders, chosen, wrong.get("folders", ""))
    for key, label, kind_of, more in stage_controls(offer.scratch):
        add(key, label, kind_of, "", **more)
    return controls


@functools.cache
def environment() -> Environment:
    """Return the Jinja environment for the parts of pages that spawners render."""
    folder = Path(share_folder()) / "templates"
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
