"""``carme-hub reservations``: the calendar from a terminal or a script, through the reservations service's REST API."""

from __future__ import annotations

from typing import Any

from carme_hub.cli.base import CommandGroup


class ReservationsApp(CommandGroup):
    """The commands on the calendar, in which GPUs are booked."""

    name = "carme-hub reservations"
    description = """Book GPUs, and see what is booked and what is free, from a login node, your own machine or a
    script. It uses the hub's reservations service with one of your tokens; --hub is the hub's address as in a browser,
    and the environment's JUPYTERHUB_PUBLIC_HUB_URL, which a session may have, has precedence over JUPYTERHUB_API_URL.
    The token needs the scopes custom:carme:reservation:write (read, to look only) and
    access:services!service=reservations. Exit status: 0 done, 1 refused, 2 the calendar did not answer."""

    subcommands: Any = {
        "list": ("carme_hub.cli.reservations.show.ListApp", "List bookings: yours, everybody's, those that wait"),
        "free": ("carme_hub.cli.reservations.show.FreeApp", "Show how many GPUs are free, and when"),
        "show": ("carme_hub.cli.reservations.show.ShowApp", "Show all details of one booking"),
        "book": ("carme_hub.cli.reservations.book.BookApp", "Book GPUs, once or repeatedly"),
        "move": ("carme_hub.cli.reservations.change.MoveApp", "Move a booking, or change its size or title"),
        "cancel": ("carme_hub.cli.reservations.change.CancelApp", "Cancel a booking, or several times of it"),
        "release": ("carme_hub.cli.reservations.change.ReleaseApp", "Give back what is left of one that has begun"),
        "approve": ("carme_hub.cli.reservations.change.ApproveApp", "Approve a booking"),
        "deny": ("carme_hub.cli.reservations.change.DenyApp", "Deny a booking"),
        "maintenance": ("carme_hub.cli.reservations.change.MaintenanceApp", "Keep nodes free of jobs for a time"),
    }
