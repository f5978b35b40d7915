"""Where Slurm counts GPUs by licences, the service says so, and says when the count does not hold."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from forged_calendar_pages import HOUR, NOW, running

from carme_hub.booking.calendar import NoSuchGpus
from carme_hub.domain.calendar.capacity import Need
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.reservations.application.license_counts import MAX_AGE, LicenseCounts

SETTINGS = {"enabled": True, "keep": "licenses", "licenses": {"a100": "gpu_a100"}}


async def test_what_is_not_kept_exactly_is_said_before_it_is_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, **SETTINGS) as site:
        supply = json.loads((await site.api("tina", "GET", "api/v1/supply")).body)
        assert supply["keeps"] == "licenses"
        assert "other nodes than planned" in supply["notes"][0]
        assert {each["gpu_type"] for each in supply["types"]} == {"a100"}, "what has no licence cannot be booked"
        page = await site.visitor("tina").text("")
        assert "other nodes than planned" in page
        (one,) = await site.book("tina", "Class", NOW + HOUR, need=Need("a100", 1, 4))
        assert one.license == "gpu_a100"
        shown = json.loads((await site.api("tina", "GET", f"api/v1/bookings/{one.id}")).body)
        assert shown["slurm"] == [f"carme-{one.id.replace('-', '')[:16]}-0"]
        assert "on whichever nodes have them" in await site.visitor("tina").text(f"bookings/{one.id}")


async def test_what_has_no_licence_in_slurm_cannot_be_booked_and_health_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, **SETTINGS) as site:
        there = {"gpu_h100": 4}

        async def ask() -> Mapping[str, int]:
            return there

        site.service.licenses._ask = ask
        await site.service.licenses.look(site.service.slurm_view.nodes)
        health = json.loads((await site.ask("api/v1/health")).body)
        assert health["faults"] == ["Slurm has no licence gpu_a100, so a100 cannot be booked."]
        with pytest.raises(NoSuchGpus):
            await site.book("tina", "Class", NOW + HOUR, need=Need("a100", 1))


async def test_a_fault_is_logged_once_and_a_silent_slurm_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    there: dict[str, int] | None = {"gpu_a100": 7}
    now, asked = 0.0, 0

    async def ask() -> Mapping[str, int]:
        nonlocal asked
        asked += 1
        if there is None:
            raise SlurmUnreachable("connection refused")
        return there

    counting = LicenseCounts({"a100": "gpu_a100"}, ask, clock=lambda: now, log=logging.getLogger("counting"))
    nodes = [Node(f"n{number}", "idle", True, gpus={"a100": 4}) for number in range(2)]
    for each in ({"gpu_a100": 7}, {"gpu_a100": 7}, None, {}, {"gpu_a100": 8}):
        there = each
        await counting.look(nodes)
        await counting.look(nodes)
        now += MAX_AGE
    assert asked == 6, "once a minute, and again at once while Slurm is silent"
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "WARNING", "ERROR", "INFO"]
    assert counting.faults == ()
    assert not counting.missing
