"""GPUs that Slurm counts by licences: the ``--licenses`` of a session, and checks of the configuration. Pure.

A site defines a Slurm licence for each GPU type, with as many licences as it has GPUs of the type, and every job with
GPUs names as many of them. A booking is then a reservation of licences, without nodes. A job inside a booking names no
licence: the booking's reservation holds them, and Slurm would count the job's licences a second time, so that another
booking could not start with its own GPUs (seen on 22.05 and 24.11).
"""

from __future__ import annotations

from collections.abc import Mapping

from carme_hub.domain.sessions.session import Request

from .slurm_reservations import PREFIX


def license_argument(request: Request, licenses: Mapping[str, str]) -> str:
    """Return the value of ``--licenses`` for a session, "" for none.

    Args:
        licenses: the licence that counts each GPU type, {} if none does.
    """
    name = licenses.get(request.gpus.type, "") if request.gpus else ""
    return f"{name}:{request.gpus.count}" if name and not request.reservation.startswith(PREFIX) else ""


def license_problems(licenses: Mapping[str, str], there: Mapping[str, int], gpus: Mapping[str, int]) -> tuple[str, ...]:
    """Return sentences about what is wrong with the licences, () if they are right.

    Args:
        licenses: the licence of each GPU type. there: Slurm's number of each licence. gpus: total number by type.
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
