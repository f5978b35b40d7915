"""What a request comes to as a job."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.containers.registry import runtime
from carme_hub.containers.runtime import Image
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
