"""The hub's view of images: what it offers a user, where nodes have it, and what stays while the database is down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carme_hub.containers.bubblewrap import Bubblewrap
from carme_hub.containers.runtime import Image
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.images.builds import Build, BuildState
from carme_hub.domain.images.offers import CatalogueImage, Offer, Retirement, To
from carme_hub.domain.images.start_times import Held
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import ContainerError, StoreError
from carme_hub.images.offered import OfferedImages, local_path
from carme_hub.images.settings import CarmeImages
from carme_hub.images.starts import ImageStarts
from carme_hub.spawners.hub.images import of_sessions
from carme_hub.spawners.hub.images.of_sessions import placed
from carme_hub.spawners.job_script import Site
from carme_hub.store.engine import make_engine, migrate
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.images.nodes import ImageNode, NodeImageStore

DIGEST = "sha256:" + "1" * 64
TORCH = CatalogueImage("torch", "/srv/images/torch", digest=DIGEST, size=1 << 30)
LOG = logging.getLogger("test")


class Hub:
    """The hub's images on a real database, with clocks that are moved by hand."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.engine = make_engine(f"sqlite:///{folder / 'db.sqlite'}")
        migrate(self.engine)
        self.store, self.nodes = ImageStore(self.engine, "lab"), NodeImageStore(self.engine, "lab")
        self.now = 1000.0
        clock = lambda: self.now  # noqa: E731
        self.images = OfferedImages(CarmeImages(**settings), self.store, self.nodes, LOG, clock, clock)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    found = Hub(tmp_path, node_store="/local")
    yield found
    found.engine.dispose()


async def test_a_user_is_offered_what_is_for_them_until_its_date(hub: Hub) -> None:
    hub.store.put([TORCH, CatalogueImage("base", "/x", listed=True)], 1.0)
    hub.store.offer("torch", Offer(To.GROUP, "course", "root", 1.0))
    view = await hub.images.view()
    assert set(hub.images.offered(view, "alice", ["course"])) == {"torch"}
    assert not hub.images.offered(view, "alice", [])
    hub.store.retire("torch", Retirement(1100.0, "old", "root", 1.0))
    hub.store.retire("base", Retirement(1100.0, "old", "root", 1.0))
    hub.now = 1200.0
    view = await hub.images.view()
    assert not hub.images.offered(view, "alice", ["course"])
    assert hub.images.retired(view) == {"torch", "base"}


async def test_what_was_known_stays_while_the_database_fails(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.store.put([TORCH], 1.0)
    assert set((await hub.images.view()).images) == {"torch"}

    def fails() -> None:
        raise StoreError("no database")

    monkeypatch.setattr(hub.store, "images", fails)
    hub.now += 60
    assert set((await hub.images.view()).images) == {"torch"}


async def test_only_fresh_reports_of_nodes_count(hub: Hub) -> None:
    hub.store.put([TORCH], 1.0)
    hub.nodes.report(ImageNode("n1", 1000.0), [Held("n1", DIGEST, 1000.0, 10.0, 1 << 30)])
    hub.nodes.report(ImageNode("n2", 1000.0), [Held("n2", DIGEST, problem="no room")])
    view = await hub.images.view()
    found = hub.images.fetching(view, "torch", ["n1", "n2"])
    assert found is not None
    assert (found.nodes, found.there, found.seconds) == (2, 1, 10.0)
    assert hub.images.fetching(view, "nosuch", ["n1"]) is None
    hub.now += 2 * 3600
    found = hub.images.fetching(await hub.images.view(), "torch", ["n1"])
    assert found is not None
    assert found.is_needed


def test_a_session_uses_the_nodes_copy_and_tells_the_prolog_which() -> None:
    site, offered = Site(Bubblewrap(), extra={"comment": "of the site"}), Hub.__new__(Hub)
    offered.images = OfferedImages(CarmeImages(node_store="/local"), None, None, LOG)  # type: ignore[arg-type]
    image, found = placed(Image("torch", TORCH.path), TORCH, site, offered.images)
    assert image.path == "/local/sha256-" + "1" * 64
    assert found.extra["comment"] == f"of the site carme-image={DIGEST}"
    packed = replace(TORCH, form="sqfs", path="/srv/images/torch/image.sqsh")
    image, found = placed(Image("torch", packed.path, "sqfs"), packed, site, offered.images)
    assert image.path == f"/local/sha256-{'1' * 64}.sqfs/image.sqsh"
    assert found.extra["comment"].endswith(f"carme-image={DIGEST}.sqfs")


def test_an_image_without_a_digest_and_a_site_without_copies_use_the_store() -> None:
    assert local_path(replace(TORCH, digest=""), "/local") == TORCH.path
    assert local_path(TORCH, "") == TORCH.path
    offered = OfferedImages(CarmeImages(), None, None, LOG)  # type: ignore[arg-type]
    site, image = Site(Bubblewrap()), Image("torch", TORCH.path)
    assert placed(image, TORCH, site, offered) == (image, site)


@pytest.mark.parametrize("wrong", ["relative", "/a/../b", "/with space", "/a:b", "/it's"])
def test_a_folder_that_is_none_is_refused_with_its_name(wrong: str) -> None:
    with pytest.raises(Exception, match="give an absolute path"):
        CarmeImages(node_store=wrong)
    with pytest.raises(Exception, match=r"CarmeImages\.stores is"):
        CarmeImages(stores=[wrong])


async def test_starts_are_measured_from_the_jobs_start_once_slurm_has_said_it(hub: Hub) -> None:
    answers: list[Snapshot | None] = [None]
    starts = ImageStarts(hub.store, lambda: answers[-1], LOG, pause=0.01)
    row = Session("s1", "lab", "alice", "", Request("x", "torch"), SessionState.SUBMITTED, 100.0, job_id=7)
    starts.changed(row)
    starts.changed(row.replace(state=SessionState.RUNNING, started=118.5))
    await asyncio.sleep(0.05)
    assert hub.store.starts() == {}
    job = Job(7, row.job_name, "alice", "RUNNING", Phase.ACTIVE, start=110.0, gpus=Gpus())
    answers.append(Snapshot(0.0, 0.0, {7: job}))
    await asyncio.sleep(0.1)
    assert hub.store.starts() == {"torch": [8.5]}
    late = row.replace(id="s2", state=SessionState.RUNNING, started=200.0)
    starts.changed(late)
    await starts.stop()
    assert hub.store.starts() == {"torch": [8.5]}, "its submission was not seen, so its start is not known"


def test_only_the_newest_starts_of_an_image_are_kept(hub: Hub) -> None:
    for number in range(40):
        hub.store.add_start(f"s{number}", "torch", float(number), float(number))
    assert hub.store.starts(["torch"])["torch"] == [float(number) for number in range(39, 9, -1)]
    assert hub.store.starts(["other"]) == {}


def spawner_of(user: Any, *images: Image) -> Any:
    """Return what is used of a spawner whose site lists these images, and starts containers by bubblewrap."""
    return SimpleNamespace(user=user, site_images=lambda: images, site=lambda: Site(Bubblewrap()))


async def test_a_session_gets_what_its_user_is_offered_and_keeps_it_when_it_is_retired(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.store.put([TORCH], 1.0)
    hub.store.offer("torch", Offer(To.GROUP, "course", "root", 1.0))
    hub.store.retire("torch", Retirement(500.0, "old", "root", 1.0))
    monkeypatch.setattr(of_sessions, "site_for", lambda *_: Site(Bubblewrap()))
    user = SimpleNamespace(name="alice", groups=[SimpleNamespace(name="course")])
    spawner = spawner_of(user, Image("base", "/x"))
    context: Any = SimpleNamespace(images=hub.images)
    image, _ = await of_sessions.image_and_site(context, spawner, None, "torch")  # type: ignore[arg-type]
    assert image.path.startswith("/local/sha256-1")
    assert (await of_sessions.form_images(context, spawner, ["course"], 1000.0)).images == {"base": ""}
    user.groups.clear()
    for name in ("torch", "nosuch"):
        with pytest.raises(ContainerError, match=f"image {name} is no longer offered"):
            await of_sessions.image_and_site(context, spawner, None, name)  # type: ignore[arg-type]


async def test_the_form_has_the_administrators_list_first_and_the_date_of_what_is_retired_soon(hub: Hub) -> None:
    hub.store.put([TORCH, CatalogueImage("base", "/x", listed=True)], 1.0)
    hub.store.offer("torch", Offer(To.EVERYBODY, "", "root", 1.0))
    hub.store.retire("base", Retirement(90_000.0, "old", "root", 1.0))
    hub.store.put([TORCH, CatalogueImage("base", "/x", listed=True), replace(TORCH, name="file", form="sqfs")], 1.0)
    hub.store.offer("file", Offer(To.EVERYBODY, "", "root", 1.0))
    spawner = spawner_of(SimpleNamespace(name="bob"), Image("base", "/x"))
    context: Any = SimpleNamespace(images=hub.images)
    found = await of_sessions.form_images(context, spawner, [], 1000.0)
    assert list(found.images) == ["base", "torch"], "no file, which bubblewrap does not start"
    assert found.images["base"].startswith("not offered from ")


async def test_nobody_starts_with_an_own_image_on_top_of_a_retired_one(hub: Hub) -> None:
    hub.store.put([TORCH], 1.0)
    hub.store.offer("torch", Offer(To.EVERYBODY, "", "ada", 1.0))
    build = Build("11111111-1111-4111-8111-111111111111", "bob", "tools", "torch", DIGEST, state=BuildState.READY)
    hub.images.builds.add(build)
    spawner = spawner_of(SimpleNamespace(name="bob"))
    context: Any = SimpleNamespace(images=hub.images)

    async def offered() -> dict[str, str]:
        hub.images.look_again()
        return (await of_sessions.form_images(context, spawner, [], hub.now)).images

    assert (await offered())["tools"] == "your own, on top of torch"
    hub.store.retire("torch", Retirement(90_000.0, "old", "ada", 1.0))
    assert "your own, on top of torch (not offered from" in (await offered())["tools"]
    hub.now = 90_001.0
    assert await offered() == {}


async def test_the_form_says_which_image_another_user_has_built(hub: Hub) -> None:
    made = replace(TORCH, name="made", source="layer:x of alice on it", description="Official torch", by="alice")
    hub.store.put([made, TORCH], 1.0)
    for name in ("made", "torch"):
        hub.store.offer(name, Offer(To.EVERYBODY, "", "ada", 1.0))
    spawner = spawner_of(SimpleNamespace(name="bob"))
    context: Any = SimpleNamespace(images=hub.images)
    found = await of_sessions.form_images(context, spawner, [], 1000.0)
    assert found.images == {"made": "Official torch (built by alice)", "torch": ""}
