"""The calendar knows the profiles that the site lists, and says so where it cannot."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import forged_calendar_pages as forged
import pytest
import pytest_asyncio
from forged_calendar_pages import HOUR, NOW, Site, running

from carme_hub.booking.calendar import SlotTaken
from carme_hub.domain.calendar.capacity import Need
from carme_hub.errors import SlurmUnreachable

START = int(NOW) + 24 * HOUR
BODY = {"title": "Class", "gpu_type": "a100", "gpus": 1, "seats": 4, "start": START, "end": START + HOUR}
UNKNOWN = "The calendar does not know the profiles of this site"


@pytest.fixture
def profiles() -> Any:
    gpus = {"types": ["a100"], "max": 1}
    return [{"slug": "torch", "display_name": "PyTorch", "gpus": gpus, "partition": "interactive"}]


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profiles: Any) -> AsyncIterator[Site]:
    parts = {"gpu1": ("batch",), "gpu2": ("interactive",), "gpu3": ("interactive",)}
    nodes = tuple(replace(node, partitions=parts[node.name]) for node in forged.NODES)
    monkeypatch.setattr(forged, "NODES", nodes)
    monkeypatch.setattr(forged, "PROFILES", profiles)
    async with running(tmp_path, monkeypatch) as site:
        yield site


async def send(site: Site, path: str, **changes: Any) -> tuple[int, dict[str, Any]]:
    keys = {} if path == "check" else {"Idempotency-Key": "k1"}
    answer = await site.api("tina", "POST", f"api/v1/{path}", json.dumps({**BODY, **changes}), **keys)
    return answer.code, json.loads(answer.body)


async def test_a_class_is_on_nodes_where_its_profile_starts(site: Site) -> None:
    code, said = await send(site, "bookings", profile="torch")
    assert code == 200
    assert [place["node"] for place in said["bookings"][0]["places"]] == ["gpu2"]


@pytest.mark.parametrize(
    "profiles", [[{"slug": "torch", "display_name": "PyTorch", "gpus": {"types": ["a100"], "max": 1}}]]
)
async def test_a_profile_without_a_partition_starts_in_slurms_default_one(site: Site) -> None:
    slurm_view, said = site.service.slurm_view, ["interactive", SlurmUnreachable("no answer")]

    async def default() -> str:
        found = said.pop(0)
        if isinstance(found, SlurmUnreachable):
            raise found
        return str(found)

    slurm_view._default = default
    for title, node in (("Class", "gpu2"), ("Another", "gpu2"), ("Third", None)):
        if said:
            site.now += 60
            await slurm_view.look()
        if node is None:
            with pytest.raises(SlotTaken):
                await site.book("tina", title, START, need=Need("a100", 1, 2), profile="torch")
        else:
            (one,) = await site.book("tina", title, START, need=Need("a100", 1, 2), profile="torch")
            assert [place.node for place in one.places] == [node], "what was last seen stays"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"profile": "no-such"}, "There is no profile no-such. Profiles are: torch."),
        ({"profile": "torch", "gpus": 4, "seats": 1}, "A session of “PyTorch” has 1 × a100, and a seat would have 4."),
    ],
)
async def test_a_profile_that_cannot_start_there_is_refused(site: Site, changes: dict[str, Any], words: str) -> None:
    code, said = await send(site, "bookings", **changes)
    assert (code, said["error"]) == (409, "profile-not-allowed")
    assert said["message"].startswith(words)
    code, said = await send(site, "check", **changes)
    assert (code, said["granted"]) == (200, False)
    assert said["refusal"].startswith(words)


@pytest.mark.parametrize("profiles", [lambda spawner: [], []])
async def test_where_profiles_are_made_for_each_user_the_page_and_the_check_say_so(site: Site) -> None:
    code, said = await send(site, "check", profile="torch")
    assert (code, said["granted"]) == (200, True)
    assert UNKNOWN in said["notes"][-1]
    assert UNKNOWN in await site.visitor("tina").text("book")


async def test_where_profiles_are_listed_the_page_says_nothing(site: Site) -> None:
    page = await site.visitor("tina").text("book")
    assert UNKNOWN not in page
    assert "PyTorch" in page
