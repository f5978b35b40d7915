"""The settings of the calendar, read by the hub (which starts sessions in slots) and by the reservations service."""

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
    """The calendar: who may book how many GPUs, and how Slurm keeps it.

    Limits of users, groups, roles and accounts are in the policy (docs/reference/policies.md); what is said here of
    booking counts where the policy says nothing. Notices go where `CarmeQuotas` sends them (webhook, mail).
    """

    enabled = Bool(
        False,
        help="""Keep a calendar in which GPUs are booked. The default is off. It is set by
        ``configure(c, reservations=True)``, which adds the reservations service too: without it nothing that is booked
        ever comes to Slurm.""",
    ).tag(config=True)

    port = Integer(10103, min=1, max=65535, help="Loopback port of the reservations service.").tag(config=True)

    # -- how Slurm keeps it -------------------------------------------------------------------------------------------

    keep = Enum(
        ("auto", "gpus", "nodes", "licenses"),
        default_value="auto",
        help="""What Slurm reserves. ``gpus``: single GPUs of a node (``TRES=gres/gpu:…``, from Slurm 24.11 on).
        ``nodes``: whole nodes; a booking of fewer GPUs takes the node with all that is on it, as earlier releases know
        no GPUs in reservations. ``licenses``: as many of a licence as GPUs are booked, wherever those are; see
        ``licenses``. ``auto``, the default, finds out which Slurm it is, and takes ``gpus`` or ``nodes``. The calendar
        says what is kept before anything is booked. Example: ``c.CarmeReservations.keep = "nodes"``.""",
    ).tag(config=True)

    licenses = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="""With ``keep = "licenses"``: the licence of Slurm by which each GPU type is counted. Other types cannot
        be booked. Slurm has to have as many of it as there are GPUs (``Licenses=gpu_a100:16`` in slurm.conf), and every
        job that takes such GPUs outside of a booking has to name as many (``--licenses=gpu_a100:2``): the hub's
        sessions do, other jobs by the job_submit.lua that comes with Carme Hub. The default is none. Example:
        ``c.CarmeReservations.licenses = {"a100": "gpu_a100"}``.""",
    ).tag(config=True)

    partitions = List(
        Unicode(),
        help="""Partitions whose nodes can be booked. The default [] is all nodes that have GPUs. Example, where some
        nodes are never to be taken from those who come without a booking:
        ``c.CarmeReservations.partitions = ["interactive"]``.""",
    ).tag(config=True)

    shards_kept_off = Bool(
        False,
        help="""Whether the site keeps jobs with shards (``--gres=shard:1``) off reserved GPUs by itself, by a
        job submit plugin of its own for example. Slurm does not, so by default a node with shards is booked as a
        whole. Example: ``c.CarmeReservations.shards_kept_off = True``.""",
    ).tag(config=True)

    ahead = Integer(
        30 * _DAY,
        min=3600,
        help="""Seconds before its start from which a booking is in Slurm. The default is 30 days. Slurm looks at each
        reservation whenever it plans, so a site with thousands of bookings a month keeps fewer there. Example:
        ``c.CarmeReservations.ahead = 7 * 86400``.""",
    ).tag(config=True)

    interval = Float(
        30.0,
        min=1.0,
        max=60.0,
        help="Seconds between two comparisons of the calendar with Slurm; what somebody changes is compared at once.",
    ).tag(config=True)

    back_in = Integer(
        3600,
        min=60,
        help="""Seconds after which a node that is down or drained now is taken to be back, at the next quarter of an
        hour on the clock: until then it cannot be booked. A node with an announced end of its outage is better given a
        maintenance window. Example, where broken nodes stay away for days:
        ``c.CarmeReservations.back_in = 2 * 86400``.""",
    ).tag(config=True)

    no_show = Integer(
        900,
        min=0,
        help="""Seconds after its start at which a booking without any job in it is given back: its owner is told, GPU
        time that it held is refunded, and what is left of it is open to others. 0 never does. Example:
        ``c.CarmeReservations.no_show = 1800``.""",
    ).tag(config=True)

    remind = Integer(
        900,
        min=0,
        help="""Seconds before its start at which those for whom a booking is are told that it begins. 0 tells
        nobody. Example: ``c.CarmeReservations.remind = 3600``.""",
    ).tag(config=True)

    charge = Enum(
        ("used", "booked"),
        default_value="used",
        help="""What a booking costs, where there is a ledger of GPU time. ``used``, the default: what its sessions
        used; the rest of what it held is refunded when it is over. ``booked``: all of the time that was booked, as
        Slurm itself accounts reservations; what its sessions used is within that, and time in which Slurm did not have
        it, or it had a problem, is not charged. Example: ``c.CarmeReservations.charge = "booked"``.""",
    ).tag(config=True)

    # -- the usual rule, where the policy says nothing ----------------------------------------------------------------

    book_ahead = Integer(
        30 * _DAY,
        min=0,
        help="""Seconds from now to the latest start that may be booked, where the policy says nothing. The default is
        30 days. A term of weekly classes needs more, best for teachers alone, by the policy:
        ``{"id": "classes", "role": "teacher", "booking": {"ahead": "200d"}}``.""",
    ).tag(config=True)

    book_length = Integer(
        _DAY,
        min=60,
        help="""The most seconds of one booking, where the policy says nothing. The default is 24 hours. Example:
        ``c.CarmeReservations.book_length = 3 * 86400``.""",
    ).tag(config=True)

    at_once = Integer(
        10,
        min=0,
        help="""How many bookings of one user may be not over yet, where the policy says nothing; one that comes again
        counts once. 0 lets nobody book whom the policy does not let. Example: ``c.CarmeReservations.at_once = 3``.""",
    ).tag(config=True)

    cooldown = Integer(
        0,
        min=0,
        help="""Seconds that have to lie between two bookings of one user, where the policy says nothing. The default 0
        asks for none. Example: ``c.CarmeReservations.cooldown = 3600``.""",
    ).tag(config=True)

    approval_above = Integer(
        0,
        min=0,
        help="""GPU-hours of one booking, all its times together, above which an administrator has to approve it, where
        the policy says nothing. The default 0 asks for no approval: the other limits keep one user from taking the
        cluster. Example: ``c.CarmeReservations.approval_above = 200``.""",
    ).tag(config=True)

    share = Integer(
        80,
        min=1,
        max=100,
        help="""Percent of each type of GPU that may be booked at one moment, by everybody together, where the policy
        says nothing. The default leaves a fifth to those who come without a booking; where there are fewer than five
        of a type, that is one. Example: ``c.CarmeReservations.share = 50``.""",
    ).tag(config=True)

    @validate("licenses")
    def _plain_names(self, proposal: Any) -> Any:
        if wrong := sorted(name for name in proposal["value"].values() if not _LICENSE.fullmatch(name)):
            raise TraitError(f"licenses: {wrong[0]!r} is no name of a licence")
        if len({*proposal["value"].values()}) < len(proposal["value"]):
            raise TraitError("licenses: each GPU type needs a licence of its own")
        return proposal["value"]

    def counted_by(self) -> dict[str, str]:
        """Return the licence by which each GPU type is counted, {} where Slurm keeps GPUs or nodes.

        Raises:
            ConfigError: they are to be kept by licences, and none is named.
        """
        if not self.enabled or self.keep != "licenses":
            return {}
        if not self.licenses:
            raise ConfigError('CarmeReservations.keep = "licenses" needs a licence for each GPU type in `licenses`')
        return dict(self.licenses)

    def usual(self) -> BookingRule:
        """Return the rule that counts where the policy says nothing."""
        return BookingRule(
            ahead=self.book_ahead,
            length=self.book_length,
            at_once=self.at_once,
            cooldown=self.cooldown or None,
            approval_above=self.approval_above * GPU_HOUR or None,
            share=self.share,
        )
