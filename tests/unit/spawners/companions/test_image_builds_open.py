"""A build is a batch job of its user: written, admitted and submitted once, with what it installs in its document."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_batch_jobs_open import SpawnerOfBatchJobs
from test_companions_open import PARENT, Part, book, session
from test_job_script import ALICE

from carme_hub.containers.registry import runtime
from carme_hub.domain.cluster.reasons import end_sentence
from carme_hub.domain.images.builds import Build, BuildState, CannotBuild
from carme_hub.domain.images.offers import CatalogueImage, Retirement
from carme_hub.domain.sessions.companions import NoCompanion
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import QuotaExceeded
from carme_hub.images.offered import OfferedImages
from carme_hub.images.settings import CarmeImages
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.spawners.companions.image_builds import (
    Asked,
    build_of,
    builds_of,
    open_build,
    remove_build,
    removed_of,
    terms_of,
)
from carme_hub.spawners.hub.images.of_sessions import form_images, image_and_site
from carme_hub.spawners.job_script import Server, render
from carme_hub.store.engine import make_engine
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.images.nodes import NodeImageStore

__all__ = ["book", "session"]

TOOLS = Asked("tools", "requirements", "rich\n", 30, "Colours")


class UserInGroups:
    """Alice, with her groups."""

    def __init__(self, *groups: str) -> None:
        self.name, self.groups = "alice", [SimpleNamespace(name=each) for each in groups]


class SpawnerOfBuilds(SpawnerOfBatchJobs):
    """Its user may have two batch jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.user = UserInGroups("ml")  # type: ignore[assignment]


class PartWithImages(Part):
    """A hub that keeps a catalogue, and whose mirror of PyPI compute nodes reach."""

    def __init__(self, book: SessionRegistry, folder: Path, limits: Mapping[str, Any]) -> None:
        super().__init__(book)
        engine = make_engine(f"sqlite:///{folder}/carme.sqlite")
        settings = CarmeImages(build_limits=limits, build_environ={"PIP_INDEX_URL": "http://mirror/simple"})
        store, nodes = ImageStore(engine, "lab"), NodeImageStore(engine, "lab")
        self.images: Any = OfferedImages(settings, store, nodes, logging.getLogger("test"))


@pytest.fixture
def part(book: SessionRegistry, tmp_path: Path) -> Any:
    return PartWithImages(book, tmp_path, {"": {"builds": 2, "gib": 1}})


async def ended(part: Any, build: Build, reason: str = end_sentence("COMPLETED")) -> None:
    await part.registry.close(build.id, reason)
    part.images.look_again()


async def test_a_build_is_a_batch_job_with_its_program_and_nothing_secret(part: Any, session: Session) -> None:
    build, warnings = await open_build(part, SpawnerOfBuilds(), session, TOOLS, "k1")
    assert part.done == ["hold"], "it is charged like a session"
    assert warnings == ("That is much.",)
    [spec] = part.client.specs
    assert (spec.nodes, spec.gpus.count, spec.time_limit, spec.user) == (1, 1, 32, "alice"), "the profile has no 0 GPUs"
    document = json.loads(spec.data)
    said = json.loads(document["files"]["build.json"]["text"])
    assert (said["id"], said["text"], said["bytes"]) == (build.id, "rich\n", 1 << 30)
    assert said["environ"] == {"PIP_INDEX_URL": "http://mirror/simple"}
    assert "singleuser" not in document
    assert document["plan"]["argv"][-3:] == ["python3", f"{spec.session_folder}/carme-build", spec.session_folder]
    assert document["plan"]["environ"]["CARME_PACKAGES"] == f"{ALICE.home}/.carme/images/{build.id}.part"
    again, _ = await open_build(part, SpawnerOfBuilds(), session, TOOLS, "k1")
    assert again.id == build.id
    assert len(part.client.specs) == 1


async def test_it_is_its_users_alone_and_ready_when_its_job_has_completed(part: Any, session: Session) -> None:
    spawner = SpawnerOfBuilds()
    build, _ = await open_build(part, spawner, session, TOOLS)
    assert "tools" not in (await form_images(part, spawner, [], 1.0)).images
    await ended(part, build)
    shown = (await form_images(part, spawner, [], 1.0)).images
    assert shown["tools"] == "Colours (your own, on top of default)"
    bob = SpawnerOfBuilds()
    bob.user.name = "bob"
    assert "tools" not in (await form_images(part, bob, [], 1.0)).images
    with pytest.raises(CannotBuild):
        await build_of(part, "bob", build.id)
    with pytest.raises(Exception, match="no longer offered"):
        await image_and_site(part, bob, ALICE, "tools")
    image, site = await image_and_site(part, spawner, ALICE, "tools")
    [layer] = image.layers
    assert layer == f"{ALICE.home}/.carme/images/{build.id}"
    spec = render(PARENT, ALICE, session.request, image, Server((), {}, "http://x/y", "n"), site)
    plan = json.loads(spec.data)["plan"]
    assert layer in plan["preflight"], "nothing starts without it"
    assert plan["environ"]["CARME_LAYER"] == plan["environ"]["PYTHONUSERBASE"] == layer
    assert f":{layer}/bin:" in plan["environ"]["PATH"]
    assert (await build_of(part, "alice", build.id)).used, "a session has it"


async def test_limits_names_and_refusals_leave_nothing(part: Any, session: Session) -> None:
    spawner = SpawnerOfBuilds()
    part.refuses = "Your account has 1 GPU-hour left."
    with pytest.raises(QuotaExceeded):
        await open_build(part, spawner, session, TOOLS)
    assert await builds_of(part, "alice") == []
    part.refuses = ""
    first, _ = await open_build(part, spawner, session, TOOLS)
    with pytest.raises(CannotBuild, match="Another image is called tools"):
        await open_build(part, spawner, session, TOOLS)
    await ended(part, first)
    second, _ = await open_build(part, spawner, session, replace(TOOLS, name="more"))
    await ended(part, second, "It was cancelled.")
    second, _ = await open_build(part, spawner, session, replace(TOOLS, name="more"))
    await ended(part, second, end_sentence("FAILED", (1, 0)))
    third, _ = await open_build(part, spawner, session, replace(TOOLS, name="third"))
    with pytest.raises(CannotBuild, match="You may have 2 images of your own"):
        await open_build(part, spawner, session, replace(TOOLS, name="fourth"))
    assert [each.state for each in await builds_of(part, "alice")] == [
        BuildState.BUILDING,
        BuildState.FAILED,
        BuildState.FAILED,
        BuildState.READY,
    ]
    await remove_build(part, "alice", third.id)
    assert part.registry.current(third.id).cancel_wanted
    assert set(await removed_of(part, "alice")) >= {second.id, third.id}


async def test_an_image_that_a_session_has_is_not_removed(part: Any, session: Session, book: SessionRegistry) -> None:
    build, _ = await open_build(part, SpawnerOfBuilds(), session, TOOLS)
    await ended(part, build)
    own, _ = await book.intend(
        "11111111-1111-4111-8111-111111111112", "alice", "x", replace(session.request, image="tools")
    )
    with pytest.raises(CannotBuild, match="A session of yours has tools"):
        await remove_build(part, "alice", build.id)
    await book.close(own.id, "It ended.")
    await remove_build(part, "alice", build.id)
    assert await builds_of(part, "alice") == []


async def test_on_top_of_ones_own_image_it_begins_with_that_and_stays_whole_without_it(
    part: Any, session: Session
) -> None:
    spawner = SpawnerOfBuilds()
    first, _ = await open_build(part, spawner, session, TOOLS)
    await ended(part, first)
    own = session.replace(request=replace(session.request, image="tools"))
    second, _ = await open_build(part, spawner, own, Asked("more", "packages", "attrs==1.0\n"))
    assert (second.base, second.base_digest) == (first.base, first.base_digest), "the image of the site"
    assert second.text == "# as in tools:\nrich\n# and on top:\nattrs==1.0\n", "for whoever decides on an offer"
    said = json.loads(json.loads(part.client.specs[-1].data)["files"]["build.json"]["text"])
    assert (said["below"], said["below_name"], said["text"]) == (first.id, "tools", "attrs==1.0\n")
    terms = await terms_of(part, spawner, own)
    assert (terms["base"], terms["below"]) == (first.base, "tools")
    assert terms["problem"] == "You may have 2 images of your own here, and have more, tools. Remove one first."
    await remove_build(part, "alice", first.id)
    await ended(part, second)
    image, _ = await image_and_site(part, spawner, ALICE, "more")
    assert image.layers == (f"{ALICE.home}/.carme/images/{second.id}",)


async def test_what_has_more_than_packages_of_pip_is_no_base(part: Any, session: Session) -> None:
    spawner = SpawnerOfBuilds()
    build, _ = await open_build(part, spawner, session, TOOLS)
    part.images.builds.change(build.id, kind="containerfile")
    await ended(part, build)
    own = session.replace(request=replace(session.request, image="tools"))
    with pytest.raises(CannotBuild, match="tools has more than packages of pip"):
        await open_build(part, spawner, own, replace(TOOLS, name="more"))


async def test_on_top_of_what_is_retired_nothing_is_built(part: Any, session: Session) -> None:
    spawner = SpawnerOfBuilds()
    build, _ = await open_build(part, spawner, session, TOOLS)
    await ended(part, build)
    part.images.store.put([CatalogueImage(build.base, "/x", listed=True)], 1.0)
    part.images.store.retire(build.base, Retirement(1000.0, "old", "ada", 1.0))
    part.images.look_again()
    for image in (build.base, "tools"):
        origin = session.replace(request=replace(session.request, image=image))
        with pytest.raises(CannotBuild, match=f"{build.base} is not offered any more"):
            await open_build(part, spawner, origin, replace(TOOLS, name="more"))
        assert "is not offered any more" in str((await terms_of(part, spawner, origin))["problem"])


async def test_on_top_of_an_image_of_a_store_with_layers_they_are_stacked(part: Any, session: Session) -> None:
    spawner = SpawnerOfBuilds()
    layered = replace(spawner.site_images()[0], layers=("/opt/carme/layer-2", "/opt/carme/layer"))
    spawner.site_images = lambda: (layered,)  # type: ignore[method-assign]
    build, _ = await open_build(part, spawner, session, TOOLS)
    await ended(part, build)
    image, site = await image_and_site(part, spawner, ALICE, "tools")
    spec = render(PARENT, ALICE, session.request, image, Server((), {}, "http://x/y", "n"), site)
    plan = json.loads(spec.data)["plan"]
    own = f"{ALICE.home}/.carme/images/{build.id}"
    assert plan["environ"]["CARME_LAYER"] == f"{own}:/opt/carme/layer-2:/opt/carme/layer"
    assert plan["environ"]["PYTHONUSERBASE"] == own
    assert f":{own}/bin:/opt/carme/layer-2/bin:/opt/carme/layer/bin:" in plan["environ"]["PATH"]
    assert plan["environ"]["JUPYTER_PATH"].split(":")[1] == "/opt/carme/layer-2/share/jupyter"
    assert [each for each in plan["preflight"] if "layer" in each] == [], "those of the store are in the image"


@pytest.mark.parametrize(
    ("name", "form", "said"),
    [
        (
            "bubblewrap",
            "sqfs",
            "default is a squashfs file; containers are started here by Bubblewrap, which takes a f",
        ),
        ("apptainer", "sqfs", ""),
        ("podman", "sqfs", "takes a folder or a reference to a registry"),
        ("pyxis", "sqfs", "no image is built in such a step"),
    ],
)
async def test_what_the_runtime_cannot_do_is_said_before_anything_is_held(
    part: Any, session: Session, name: str, form: Any, said: str
) -> None:
    spawner = SpawnerOfBuilds()
    image, site = replace(spawner.site_images()[0], format=form, base="own"), spawner.site()
    spawner.site_images = lambda: (image,)  # type: ignore[method-assign]
    spawner.site = lambda _home="": replace(site, runtime=runtime(name))  # type: ignore[method-assign]
    if not said:
        assert (await terms_of(part, spawner, session))["problem"] == ""
        await open_build(part, spawner, session, TOOLS)
        return
    assert said in str((await terms_of(part, spawner, session))["problem"])
    with pytest.raises(CannotBuild, match=said.partition(";")[0]):
        await open_build(part, spawner, session, TOOLS)
    assert part.done == [], "nothing is held"
    assert await builds_of(part, "alice") == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked("tools", "shell", "rm -rf /"), "kind is one of"),
        (Asked("../x", "requirements", "rich"), "lower-case letters"),
        (Asked("tools", "environment", "a: ["), "not YAML"),
        (Asked("tools", "environment", "a: &a [rich]\ndependencies: [{pip: [*a, *a]}]"), "parts of itself"),
        (Asked("tools", "environment", "channels: [x]\ndependencies: [gdal]"), "channel x is not allowed"),
    ],
)
async def test_what_cannot_be_built_is_refused_before_anything_is_written(
    part: Any, session: Session, asked: Asked, said: str
) -> None:
    with pytest.raises(CannotBuild, match=said):
        await open_build(part, SpawnerOfBuilds(), session, asked)
    assert part.client.specs == []
    assert await builds_of(part, "alice") == []


async def test_without_a_catalogue_or_a_running_session_nothing_is_built(part: Any, session: Session) -> None:
    ending = session.replace(server_ended=1.0)
    with pytest.raises(NoCompanion):
        await open_build(part, SpawnerOfBuilds(), ending, TOOLS)
    part.images = None
    with pytest.raises(CannotBuild, match="keeps no catalogue"):
        await open_build(part, SpawnerOfBuilds(), session, TOOLS)
