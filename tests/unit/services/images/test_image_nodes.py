"""What nodes say of their copies, and what bookings need on them; who may say and ask that."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from forged_images import DIGEST, GIB, OTHER, Site, make_image, running

from carme_hub.domain.calendar.capacity import Need, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import Reservation, State


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    images = [{"name": "base", "path": str(make_image(tmp_path / "listed", "base", OTHER, size_bytes=GIB))}]
    async with running(tmp_path, monkeypatch, images, node_store="/local") as found:
        make_image(found.store, "torch", DIGEST, size_bytes=4 * GIB)
        await found.service.keeper.look()
        yield found


async def report(site: Site, node: str, *images: dict[str, Any], name: str = "node", **more: Any) -> int:
    return (await site.rest(name, "POST", f"nodes/{node}/images", {"images": list(images), **more})).code


async def wanted(site: Site, node: str) -> list[str]:
    answer = await site.rest("node", "GET", f"nodes/{node}/wanted")
    assert answer.code == 200, answer.body
    return list(json.loads(answer.body)["images"])


def book(site: Site, hours: float, node: str = "n1", profile: str = "a100", state: State = State.CONFIRMED) -> None:
    """Write a booking that begins in some hours."""
    start = int(site.now + hours * 3600)
    period = Period(start, start + 7200)
    place = Place(node, "a100", 4, 4)
    one = Reservation(
        *(str(uuid.uuid4()), "lab", "tina", "teaching", "Course", Need("a100", 4), period, (place,), state, site.now),
        profile=profile,
    )
    assert site.service.calendar is not None
    with site.service.calendar.transaction("lab") as writes:
        writes.add([one])


async def test_only_the_program_on_nodes_says_what_nodes_have(site: Site) -> None:
    for name in ("alice", "operator", "root"):
        assert await report(site, "n1", name=name) == 403
    assert await report(site, "n1", {"digest": "sha256:short"}) == 400
    assert await report(site, "n1", driver="550; rm") == 400
    assert await report(site, "..", driver="") == 404
    assert (await site.rest("alice", "GET", "nodes/n1/wanted")).code == 403
    assert (await site.rest("node", "GET", "images")).code == 403, "and sees nothing else"


async def test_the_board_says_which_node_has_what_and_how_long_a_fetch_takes(site: Site) -> None:
    fetched = {"digest": DIGEST, "at": site.now, "seconds": 40.0, "size": 4 * GIB}
    assert await report(site, "n1", fetched, driver="550.54.15", free=100 * GIB) == 200
    assert await report(site, "n3", {"digest": OTHER, "problem": "no\nroom"}) == 200
    board = {each["node"]: each for each in json.loads((await site.rest("alice", "GET", "nodes")).body)["nodes"]}
    assert set(board) == {"n1", "n2", "n3"}, "n3 is not in Slurm any more, and is shown while something is known"
    assert board["n1"]["images"][0]["image"] == "torch"
    assert board["n2"]["reported"] == 0
    assert board["n3"]["images"][0]["problem"] == "no room"
    fetch = (await site.images("root"))["torch"]["fetch"]
    assert (fetch["nodes"], fetch["there"], fetch["silent"], fetch["seconds"]) == (2, 1, 1, 40.0)
    assert fetch["sentence"] == "starts at once on 1 of 2 nodes, 1 node does not answer"
    base = (await site.images("root"))["base"]["fetch"]
    assert base["sentence"] == "about 10 s: has to be fetched (1 node does not answer)"
    assert await report(site, "n2") == 200
    fetch = (await site.images("root"))["torch"]["fetch"]
    assert fetch["sentence"] == "starts at once on 1 of 2 nodes, elsewhere about 40 s: has to be fetched"


async def test_a_later_report_replaces_what_a_node_had_and_keeps_what_is_known_of_a_fetch(site: Site) -> None:
    await report(site, "n1", {"digest": DIGEST, "at": site.now, "seconds": 40.0, "size": 4 * GIB}, {"digest": OTHER})
    await report(site, "n1", {"digest": DIGEST})
    board = {each["node"]: each for each in json.loads((await site.rest("alice", "GET", "nodes")).body)["nodes"]}
    [copy] = board["n1"]["images"]
    assert (copy["digest"], copy["seconds"], copy["size_bytes"]) == (DIGEST, 40.0, 4 * GIB)


async def test_a_node_that_has_said_nothing_for_long_does_not_count(site: Site) -> None:
    await report(site, "n1", {"digest": DIGEST})
    assert (await site.images("root"))["torch"]["fetch"]["there"] == 1
    site.now += 2 * 3600
    assert (await site.images("root"))["torch"]["fetch"]["there"] == 0


async def test_drivers_that_nodes_say_decide_what_fits(site: Site) -> None:
    make_image(site.store, "cuda13", packages={"python": {"torch": "2.9.0+cu130"}})
    await site.service.keeper.look()
    await report(site, "n1", driver="580.65.06")
    assert {each["profile"]: each["fits"] for each in (await site.images("root"))["cuda13"]["fits"]}["a100"] is True
    await report(site, "n2", driver="550.54.15")
    why = {each["profile"]: each["why"] for each in (await site.images("root"))["cuda13"]["fits"]}["a100"]
    assert why == "CUDA 13.0 needs driver 580.65.06 or later; a100 has 550.54.15.", "the oldest of its nodes counts"


async def test_nodes_of_tomorrows_class_are_to_fetch_its_image(site: Site) -> None:
    assert await wanted(site, "n1") == []
    book(site, 12)
    book(site, 40, node="n2")
    book(site, 3, node="n2", state=State.DRAFT)
    assert await wanted(site, "n1") == [OTHER], "the default image of the site"
    assert await wanted(site, "n2") == []
    site.now += 20 * 3600
    assert await wanted(site, "n2") == [OTHER]
    site.now += 40 * 3600
    assert await wanted(site, "n1") == await wanted(site, "n2") == []
    board = {each["node"]: each for each in json.loads((await site.rest("alice", "GET", "nodes")).body)["nodes"]}
    assert board["n1"]["wanted"] == []


async def test_the_board_page_says_the_same(site: Site) -> None:
    await report(
        site,
        "n1",
        {"digest": DIGEST, "at": site.now, "seconds": 40.0, "size": 4 * GIB},
        {"digest": OTHER, "problem": "it has 4096 MiB, and there is room for 12 MiB on this node"},
        driver="550.54.15",
        free=100 * GIB,
    )
    book(site, 2)
    text = await site.visitor("alice").text("nodes")
    assert "n1 said just now driver 550.54.15 107 GB free" in text
    assert "torch 4.3 GB, fetched in 40 s" in text
    assert "base is not there: it has 4096 MiB, and there is room for 12 MiB on this node" in text
    assert "Wanted by bookings: base" in text
    assert "n2 has never said what it has" in text
    assert f"torch {DIGEST[:19]}… on 1 of 2 nodes" in text
    assert f"base {OTHER[:19]}… on 0 of 2 nodes" in text, "one that could not be fetched does not count"
    site.slurm.silent = True
    site.service._nodes = (float("-inf"), None)
    assert "Slurm does not answer now" in await site.visitor("alice").text("nodes")
