"""The quotas service is down: sessions continue, new starts follow the site's setting, and nothing is lost."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.books import disagreements
from rig.changed import ChangedDemo, changed_hub
from rig.faults import end_service
from rig.hub import Hub, wait_for
from rig.truth import Truth

#: Less than the service's interval: only a hub of which the service is down goes by it here.
FRESH_FOR = 4
#: ``down``: a file; while it is there, the service does not come up, however often the hub starts it.
MORE = f"""
from carme_hub.accounting.settings import CarmeQuotas
CarmeQuotas.fresh_for.min = 1.0  # a site would not wait for so short a time
c.CarmeQuotas.fresh_for = {FRESH_FOR}
c.CarmeQuotas.when_service_down = {{when!r}}
[service] = [each for each in c.JupyterHub.services if each["name"] == "quotas"]
wait = 'while [ -e "$0" ]; do sleep 0.2; done; exec "$@"'
service["command"] = ["/bin/sh", "-c", wait, {{down!r}}, *service["command"]]
"""


@pytest.fixture
def down(hub: Hub) -> Iterator[Path]:
    """The file that keeps the service down; it does not exist yet."""
    file = hub.demo.folder / "quotas-is-down"
    file.unlink(missing_ok=True)
    yield file
    file.unlink(missing_ok=True)


def asked(hub: Hub, question: str, *values: object) -> list[tuple[Any, ...]]:
    """Query our database without our code."""
    database = sqlite3.connect(f"file:{hub.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)
    try:
        return list(database.execute(question, values))
    finally:
        database.close()


def last_result(hub: Hub) -> float:
    return float(asked(hub, "select max(at) from note where name = 'settled'")[0][0] or 0)


def take_down(hub: Hub, down: Path) -> float:
    """Kill the service and keep it down until the hub rejects its last result as old; return the kill's time."""
    # A hub that is still starting ends when one of its services ends.
    wait_for(lambda: "JupyterHub is now running" in hub.log_text(), 90, "the hub to be up")
    down.touch()
    end_service(hub, "quotas")
    begun = time.time()
    wait_for(lambda: time.time() - begun > FRESH_FOR + 1, 60, "the last look to be too old")
    return begun


def test_sessions_run_on_new_ones_are_refused_or_held_provisionally_and_all_is_settled_when_it_is_back(
    hub: Hub, down: Path
) -> None:
    anomalies, truth = asked(hub, "select count(*) from anomaly"), Truth(hub)
    hub.start_server("alice", profile="a100", gpus=2, time_minutes=30)
    kernel = hub.new_kernel("alice")
    hub.run_cell("alice", kernel, "mark = 'kept'")
    alice = truth.row("alice")
    wait_for(lambda: "JupyterHub is now running" in hub.log_text(), 90, "the hub to be up")
    alone = "what other tests held to be settled"
    wait_for(lambda: asked(hub, "select count(*) from open_hold") == [(1,)], 90, alone)
    killed, before = time.monotonic(), last_result(hub)
    end_service(hub, "quotas")
    wait_for(lambda: last_result(hub) > before, 30, "the hub to start the service again")
    print(f"The service was back after {time.monotonic() - killed:.1f} s")  # the promise is 10 s on a quiet machine
    with changed_hub(hub, MORE.format(when="closed", down=str(down))) as site:
        take_down(site, down)
        refused = site.begin("bob", profile="a100", gpus=1, time_minutes=30)
        assert refused.status == 400, refused
        assert "the quotas service is not running. Sessions without GPUs can start" in refused.body["message"]
        assert asked(site, "select count(*) from open_hold") == [(1,)], "a refused start holds nothing"
        assert site.start_server("tina", profile="cpu")["ready"]
        assert site.run_cell("alice", kernel, "print(mark)").strip() == "kept"
        down.unlink()

        assert isinstance(site.demo, ChangedDemo)
        site.demo.write_config(MORE.format(when="open", down=str(down)))
        site.restart()
        begun = take_down(site, down)
        site.start_server("bob", profile="a100", gpus=1, time_minutes=30)
        bob = truth.row("bob")
        [(held, reason)] = asked(site, "select amount, reason from ledger where session = ?", bob.id)
        assert held == -1800 * 1000
        assert "held provisionally: the quotas service was down" in reason
        assert site.run_cell("alice", kernel, "print(mark)").strip() == "kept"
        for user in ("tina", "bob"):
            site.stop_server(user)
        assert last_result(site) < begun, "the service was not down"
        down.unlink()
        wait_for(lambda: asked(site, "select count(*) from open_hold") == [(1,)], 60, "what ended to be settled")
        assert site.run_cell("alice", kernel, "print(mark)").strip() == "kept"
        site.start_server("bob", profile="a100", gpus=1, time_minutes=30)
        again = truth.row("bob")
        assert (truth.row("alice").id, truth.row("alice").job_id) == (alice.id, alice.job_id)
        site.stop_all()
        wait_for(lambda: asked(site, "select count(*) from open_hold") == [(0,)], 60, "everything to be settled")

    for row, gpus in ((alice, 2), (bob, 1), (again, 1)):
        [record] = truth.records_now(row.id)
        entries = asked(hub, "select kind, amount from ledger where session = ? order by id", row.id)
        assert [kind for kind, _ in entries] == ["hold", "charge", "release"]
        [(_, held), (_, charged), (_, released)] = entries
        assert charged == -int(record.end - record.start) * gpus * 1000
        assert released == -held
    assert not disagreements(hub)
    assert asked(hub, "select count(*) from anomaly") == anomalies
