"""What is said of GPUs that Slurm counts by licences."""

from __future__ import annotations

import pytest

from carme_hub.domain.calendar.licenses import license_argument, license_problems
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request

LICENSES = {"a100": "gpu_a100"}


@pytest.mark.parametrize(
    ("gpus", "reservation", "said"),
    [
        (Gpus("a100", 2), "", "gpu_a100:2"),
        (Gpus("a100", 2), "by-hand", "gpu_a100:2"),
        (Gpus("a100", 2), "carme-0123456789abcdef-0", ""),
        (Gpus("h100", 2), "", ""),
        (Gpus(), "", ""),
    ],
)
def test_a_session_names_licences_outside_of_bookings(gpus: Gpus, reservation: str, said: str) -> None:
    request = Request("gpu", "default", gpus=gpus, reservation=reservation)
    assert license_argument(request, LICENSES) == said
    assert license_argument(request, {}) == ""


@pytest.mark.parametrize(
    ("there", "gpus", "said"),
    [
        ({"gpu_a100": 8}, {"a100": 8, "h100": 4}, ""),
        ({}, {"a100": 8}, "Slurm has no licence gpu_a100, so a100 cannot be booked."),
        ({"gpu_a100": 6}, {"a100": 8}, "Slurm has 6 of the licence gpu_a100 for 8 a100: the others can never be had."),
        ({"gpu_a100": 9}, {"a100": 8}, "Slurm has 9 of the licence gpu_a100 for only 8 a100: bookings are not kept."),
        ({"gpu_a100": 8}, {"h100": 8}, "There is no GPU of type a100, for which the licence gpu_a100 is set."),
    ],
)
def test_why_a_count_does_not_hold(there: dict[str, int], gpus: dict[str, int], said: str) -> None:
    assert license_problems(LICENSES, there, gpus) == ((said,) if said else ())
