"""Settings of the calendar, for the hub (which starts sessions in reservations) and for the reservations service."""

from __future__ import annotations

import re
from typing import Any

from traitlets import Bool, Dict, Enum, Float, Integer, List, TraitError, Unicode, validate
from traitlets.config import LoggingConfigurable

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.booking_rules import BookingRule
from carme_hub.errors import ConfigError

_DAY = 86_400
#: As slurm.conf takes them; those of a license server end with ``@SERVER``.
_LICENSE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*(@[A-Za-z0-9_.-]+)?")


class CarmeReservations(LoggingConfigurable):
    """The calendar: who may book how many GPUs, and what Slurm reserves for it.

    Limits of users, groups, roles and accounts are in the policy (docs/reference/policies.md); the limits here apply
    if the policy sets none. Notices are sent as `CarmeQuotas` says (webhook, mail).
    """

    enabled = Bool(
        False,
        help="""Keep a calendar in which GPUs are booked. The default is off. ``configure(c, reservations=True)`` sets
        it, and adds the reservations service, without which no booking is written to Slurm.""",
    ).tag(config=True)

    port = Integer(10103, min=1, max=65535, help="Loopback port of the reservations service.").tag(config=True)

    # -- what Slurm reserves ------------------------------------------------------------------------------------------

    keep = Enum(
        ("auto", "gpus", "nodes", "licenses"),
        default_value="auto",
        help="""What Slurm reserves. ``gpus``: single GPUs of a node (``TRES=gres/gpu:…``, from Slurm 24.11 on).
        ``nodes``: whole nodes; a booking of fewer GPUs takes the whole node, since earlier releases have no GPUs in
        reservations. ``licenses``: as many licenses as GPUs are booked, on any nodes; see ``licenses``. ``auto``, the
        default, checks the release of Slurm, and uses ``gpus`` or ``nodes``. The calendar shows what is reserved before
        anything is booked. Example: ``c.CarmeReservations.keep = "nodes"``.""",
    ).tag(config=True)

    licenses = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="""With ``keep = "licenses"``: Slurm's license that counts each GPU type. Other types cannot be booked.
        Slurm must have as many of it as there are GPUs (``Licenses=gpu_a100:16`` in slurm.conf), and every job that
        uses such GPUs outside of a booking must request as many (``--licenses=gpu_a100:2``): the hub's sessions do,
        other jobs do by the job_submit.lua that comes with Carme Hub. The default is none. Example:
        ``c.CarmeReservations.licenses = {"a100": "gpu_a100"}``.""",
    ).tag(config=True)

    partitions = List(
        Unicode(),
        help="""Partitions whose nodes can be booked. The default [] is all nodes with GPUs. Example, for a site that
        leaves some nodes to users without a booking: ``c.CarmeReservations.partitions = ["interactive"]``.""",
    ).tag(config=True)

    shards_kept_off = Bool(
        False,
        help="""Whether the site itself keeps jobs with shards (``--gres=shard:1``) off reserved GPUs, for example by
        its own job submit plugin. Slurm does not, so by default a node with shards is booked as a whole. Example:
        ``c.CarmeReservations.shards_kept_off = True``.""",
    ).tag(config=True)

    ahead = Integer(
        30 * _DAY,
        min=3600,
        help="""Seconds before its start from which a booking is in Slurm. The default is 30 days. Slurm checks each
        reservation in each scheduling cycle, so a site with thousands of bookings a month should have fewer there.
        Example: ``c.CarmeReservations.ahead = 7 * 86400``.""",
    ).tag(config=True)

    interval = Float(
        30.0,
        min=1.0,
        max=60.0,
        help="Seconds between two comparisons of the calendar with Slurm; a change is compared at once.",
    ).tag(config=True)

    back_in = Integer(
        3600,
        min=60,
        help="""Seconds after which a node that is down or drained now is expected back, rounded up to the next quarter
        of an hour on the clock: until then it cannot be booked. For an outage with a known end, plan a maintenance
        instead. Example, for a site whose broken nodes stay away for days:
        ``c.CarmeReservations.back_in = 2 * 86400``.""",
    ).tag(config=True)

    no_show = Integer(
        900,
        min=0,
        help="""Seconds after its start at which a booking without a job is given back: its owner is notified, the GPU
        time that it held is refunded, and others can book the rest of its time. 0 = never. Example:
        ``c.CarmeReservations.no_show = 1800``.""",
    ).tag(config=True)

    remind = Integer(
        900,
        min=0,
        help="""Seconds before a booking's start at which its users are reminded of it. 0 = never. Example:
        ``c.CarmeReservations.remind = 3600``.""",
    ).tag(config=True)

    charge = Enum(
        ("used", "booked"),
        default_value="used",
        help="""What a booking costs, if there is a ledger of GPU time. ``used``, the default: what its sessions used;
        the rest of its hold is refunded when it is over. ``booked``: all booked time, as Slurm itself accounts
        reservations; it includes what its sessions used, and time in which Slurm did not have the reservation, or it
        had a problem, is not charged. Example: ``c.CarmeReservations.charge = "booked"``.""",
    ).tag(config=True)

    # -- default limits, if the policy sets none ----------------------------------------------------------------------

    book_ahead = Integer(
        30 * _DAY,
        min=0,
        help="""Seconds from now to the latest start that may be booked, if the policy sets no limit. The default is
        30 days. A term of weekly classes needs more; set it in the policy, for teachers only:
        ``{"id": "classes", "role": "teacher", "booking": {"ahead": "200d"}}``.""",
    ).tag(config=True)

    book_length = Integer(
        _DAY,
        min=60,
        help="""Longest time of one booking in seconds, if the policy sets no limit. The default is 24 hours. Example:
        ``c.CarmeReservations.book_length = 3 * 86400``.""",
    ).tag(config=True)

    at_once = Integer(
        10,
        min=0,
        help="""Bookings of one user that may be confirmed, active or waiting at one time, if the policy sets no limit;
        a recurring one counts once. With 0 only those book whom the policy allows it. Example:
        ``c.CarmeReservations.at_once = 3``.""",
    ).tag(config=True)

    cooldown = Integer(
        0,
        min=0,
        help="""Shortest pause between two bookings of one user in seconds, if the policy sets no limit. The default 0
        requires none. Example: ``c.CarmeReservations.cooldown = 3600``.""",
    ).tag(config=True)

    approval_above = Integer(
        0,
        min=0,
        help="""GPU-hours of one booking, all its times together, above which an administrator has to approve it, if
        the policy sets no limit. The default 0 requires no approval: the other limits keep one user from booking the
        whole cluster. Example: ``c.CarmeReservations.approval_above = 200``.""",
    ).tag(config=True)

    share = Integer(
        80,
        min=1,
        max=100,
        help="""Percent of each type of GPU that all users together may book at one time, if the policy sets no limit.
        The default leaves a fifth to users without a booking; of fewer than five GPUs of a type, that is one. Example:
        ``c.CarmeReservations.share = 50``.""",
    ).tag(config=True)

    @validate("licenses")
    def _plain_names(self, proposal: Any) -> Any:
        if wrong := sorted(name for name in proposal["value"].values() if not _LICENSE.fullmatch(name)):
            raise TraitError(f"licenses: {wrong[0]!r} is not the name of a license")
        if len({*proposal["value"].values()}) < len(proposal["value"]):
            raise TraitError("licenses: each GPU type needs a license of its own")
        return proposal["value"]

    def counted_by(self) -> dict[str, str]:
        """Return the license that counts each GPU type, {} if Slurm reserves GPUs or nodes.

        Raises:
            ConfigError: ``keep`` is ``licenses``, and none is named.
        """
        if not self.enabled or self.keep != "licenses":
            return {}
        if not self.licenses:
            raise ConfigError('CarmeReservations.keep = "licenses" needs a license for each GPU type in `licenses`')
        return dict(self.licenses)

    def usual(self) -> BookingRule:
        """Return the limits that apply if the policy sets none."""
        return BookingRule(
            ahead=self.book_ahead,
            length=self.book_length,
            at_once=self.at_once,
            cooldown=self.cooldown or None,
            approval_above=self.approval_above * GPU_HOUR or None,
            share=self.share,
        )
