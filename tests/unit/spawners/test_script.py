"""What a request comes to as a job."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.containers.registry import runtime
from carme_hub.containers.runtime import Image
from carme_hub.domain.resources import Gpus
from carme_hub.domain.sessions import Request
from carme_hub.spawners.script import Owner, Server, Site, render

IMAGE = Image("default", "/srv/images/default", "dir")
ALICE = Owner("alice", 1001, 1001, "/home/alice")
SERVER = Server(("jupyterhub-singleuser",), {}, "http://hub/callback", "nonce")


@pytest.mark.parametrize(
    ("of_priority", "extra", "nice", "left"),
    [
        (0, {}, 0, {}),
        (60, {}, 60, {}),
        (60, {"nice": "500", "constraint": "fast"}, 560, {"constraint": "fast"}),
        (0, {"nice": "500"}, 0, {"nice": "500"}),
        (50, {"nice": ""}, 150, {}),  # a bare --nice
    ],
)
def test_a_lowered_priority_comes_on_top_of_what_the_site_gives_every_session(
    of_priority: int, extra: dict[str, str], nice: int, left: dict[str, Any]
) -> None:
    site = Site(runtime("bubblewrap"), extra=extra)
    spec = render("0f9a", ALICE, Request("cpu", "default", nice=of_priority), IMAGE, SERVER, site)
    assert (spec.nice, spec.extra) == (nice, left)


@pytest.mark.parametrize(
    ("reservation", "extra", "said"),
    [
        ("", {}, "gpu_a100:2"),
        ("by-hand", {"licenses": "matlab:1"}, "matlab:1,gpu_a100:2"),
        ("carme-0123456789abcdef-0", {"licenses": "matlab:1"}, "matlab:1"),  # the booking has them already
    ],
)
def test_a_session_outside_of_bookings_names_the_licences_of_its_gpus(
    reservation: str, extra: dict[str, str], said: str
) -> None:
    site = Site(runtime("bubblewrap"), extra=extra, licenses={"a100": "gpu_a100"})
    request = Request("gpu", "default", gpus=Gpus("a100", 2), reservation=reservation)
    assert render("0f9a", ALICE, request, IMAGE, SERVER, site).extra["licenses"] == said
    for other in (Request("cpu", "default"), Request("gpu", "default", gpus=Gpus("h100", 1))):
        assert render("0f9a", ALICE, other, IMAGE, SERVER, site).extra == extra
