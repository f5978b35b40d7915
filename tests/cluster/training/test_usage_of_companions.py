"""Each node of a companion is measured while ranks run on it, and its user finds it at the activity service."""

from __future__ import annotations

import secrets
from typing import Any

from rig.hub import Hub, wait_for
from rig.training import Lab
from rig.truth import Truth

#: Longer than a rank waits before it has its node measured, and one sample more.
CELL = """%%distributed -n 2 --nodes 2 --only-companion --time 5m --name {name}
import time
from carme_hub.training import here
end = time.time() + 32
while time.time() < end: sum(range(10000))
print("on", here.node)
"""


def test_both_nodes_of_a_companion_are_known_with_what_the_ranks_used(site: Hub) -> None:
    site.login("alice")
    lab = Lab(site, image="default", gpus=1, cpus=2, memory_gib=4, time_minutes=60)
    token = site.api("POST", "/users/alice/tokens", {"note": "test"}).body["token"]

    def nodes(companion: str) -> dict[str, Any]:
        path = f"/services/activity/api/v1/sessions/{companion}"
        answer = site.request("GET", path, None, {"Authorization": f"token {token}"})
        assert answer.status == 200, answer
        return {node["node"]: node for node in answer.body["nodes"]}

    try:
        lab.check("%load_ext carme_hub.training")
        printed = lab.run(CELL.format(name=f"measured-{secrets.token_hex(2)}"), timeout=180)
        assert not printed.errors, printed.error
        parent = Truth(site).row("alice")
        [companion] = [row for row in Truth(site).rows_now() if row.parent == parent.id]
        # The one sends at the end of its rank, the other, which goes on with the companion, after the end of a minute.
        wait_for(lambda: len(nodes(companion.id)) == 2, 130, "both nodes")
        for node in nodes(companion.id).values():
            assert node["virtual"]
            assert len(node["total"]["gpus"]) == 1
            assert node["total"]["seconds"] >= 10
    finally:
        lab.stop()
        wait_for(lambda: site.jobs() == [], 60, "the companion to end with its session")
