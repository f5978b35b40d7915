"""The settings of ``carme-hub standby``."""

from __future__ import annotations

from traitlets import Float, List, Unicode
from traitlets.config import LoggingConfigurable


class CarmeStandby(LoggingConfigurable):
    """Two hosts for one hub, of which one is active: `carme-hub standby`."""

    lease_seconds = Float(
        12.0,
        min=3.0,
        help="""Seconds after the active host's last sign of life after which the other one takes over.

        It renews its lease six times as often, and kills its hub after three quarters of this time without a renewal:
        so long an outage of PostgreSQL ends the hub (sessions continue). A take-over takes this time and that of the
        hub's start. Set the same on both hosts. Example::

            c.CarmeStandby.lease_seconds = 15
        """,
    ).tag(config=True)
    hang_seconds = Float(
        15.0,
        min=0.0,
        help="""Seconds for which the hub's event loop may stand still; then it is killed, and the lease given back.

        It counts from the time at which the hub serves; a start may take ten minutes. 0: both as long as they like.
        Example::

            c.CarmeStandby.hang_seconds = 60
        """,
    ).tag(config=True)
    when_active = List(
        Unicode(),
        help="""Command that leads people and sessions to this host, run before the hub starts; an argv, no shell.

        It has ten seconds; if it fails, the hub starts nevertheless. The default is none: a load balancer finds the hub
        that answers. Example::

            c.CarmeStandby.when_active = ["sudo", "-n", "/usr/local/sbin/hub-address", "take"]
        """,
    ).tag(config=True)
    when_passive = List(
        Unicode(),
        help="""Command that takes back what `when_active` did, run at the start and when the hub has ended. Example::

            c.CarmeStandby.when_passive = ["sudo", "-n", "/usr/local/sbin/hub-address", "give"]
        """,
    ).tag(config=True)
