"""GPUs that Slurm counts by licences: what a session names, and why the count would not hold. Pure.

A site gives each GPU type a licence of Slurm with as many of it as it has GPUs, and every job that takes GPUs names as
many of it. A booking is then a reservation of licences, of no nodes. A job inside a booking names none: the booking's
reservation has them, and Slurm would count what its jobs name a second time, so that another booking could not start
in what is its own (seen on 22.05 and 24.11).
"""

from __future__ import annotations

from collections.abc import Mapping

from carme_hub.domain.sessions.session import Request

from .slurm_reservations import PREFIX


def named_by(request: Request, licenses: Mapping[str, str]) -> str:
    """Return what a session says to ``--licenses``, "" for nothing.

    Args:
        licenses: the licence by which each GPU type is counted, {} where none is.
    """
    name = licenses.get(request.gpus.type, "") if request.gpus else ""
    return f"{name}:{request.gpus.count}" if name and not request.reservation.startswith(PREFIX) else ""


def faults(licenses: Mapping[str, str], there: Mapping[str, int], gpus: Mapping[str, int]) -> tuple[str, ...]:
    """Return why the count does not hold, in sentences; () where it does.

    Args:
        licenses: the licence of each GPU type. there: how many of each licence Slurm has. gpus: of each type, in all.
    """
    found = []
    for type, name in sorted(licenses.items()):
        have, need = there.get(name), gpus.get(type, 0)
        if have is None:
            found.append(f"Slurm has no licence {name}, so {type} cannot be booked.")
        elif not need:
            found.append(f"There is no GPU of type {type}, for which the licence {name} is set.")
        elif have < need:
            found.append(f"Slurm has {have} of the licence {name} for {need} {type}: the others can never be had.")
        elif have > need:
            found.append(f"Slurm has {have} of the licence {name} for only {need} {type}: bookings are not kept.")
    return tuple(found)
