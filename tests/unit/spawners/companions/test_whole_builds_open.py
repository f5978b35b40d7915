"""Builds by a Containerfile and with packages of conda: bases are the user's to use and pinned; the job has all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_companions_open import book, session
from test_image_builds_open import PartWithImages, SpawnerOfBuilds, ended
from test_job_script import ALICE, IMAGE

from carme_hub.containers.runtime import Image
from carme_hub.domain.images.builds import CannotBuild
from carme_hub.domain.sessions.session import Session
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.spawners.companions.image_builds import Asked, builds_of, open_build
from carme_hub.spawners.hub.images.of_sessions import image_and_site
from carme_hub.spawners.job_script import Server, render

__all__ = ["book", "session"]

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
WHOLE = Image("whole", "/srv/whole", digest=DIGEST, environ=(("PATH", "/opt/x/bin:/bin"), ("CUDA_HOME", "/cuda")))
TEXT = "FROM whole\nRUN pip install rich\nENV TORCH_HOME=/models OTHER=1\n"


class SpawnerOfSystems(SpawnerOfBuilds):
    """Its site lists an image with a system and a digest, and others on which nothing is built."""

    def site_images(self) -> tuple[Any, ...]:
        layered = replace(WHOLE, name="layered", layers=("/opt/carme/layer",))
        return (IMAGE, WHOLE, layered, replace(WHOLE, name="squashed", format="sqfs", path="/srv/x.sqsh"),
                replace(WHOLE, name="hosted", base="host"))  # fmt: skip


@pytest.fixture
def part(book: SessionRegistry, tmp_path: Path) -> Any:
    found = PartWithImages(book, tmp_path, {"": {"builds": 9, "gib": 1}})
    found.images.settings.build_channels = {"ours": "file:///srv/conda", "conda-forge": "https://x/conda-forge"}
    return found


def asked(text: str = TEXT, kind: str = "containerfile", **more: Any) -> Asked:
    return Asked("mine", kind, text, **more)


def work(part: Any) -> dict[str, Any]:
    [spec] = part.client.specs
    document = json.loads(spec.data)
    return {**document, "build": json.loads(document["files"]["build.json"]["text"]), "spec": spec}


async def test_the_job_runs_on_the_node_with_the_base_at_its_digest(part: Any, session: Session) -> None:
    build, _ = await open_build(part, SpawnerOfSystems(), session, asked())
    assert (build.kind, build.base, build.base_digest) == ("containerfile", "whole", DIGEST)
    assert part.done == ["hold"], "it is charged like a session"
    found = work(part)
    folder = found["spec"].session_folder
    assert found["plan"]["argv"] == ["/usr/bin/python3", "-IS", f"{folder}/carme-build", folder]
    assert found["plan"]["environ"]["HOME"] == ALICE.home
    assert "layer.py" in found["files"]
    said = found["build"]
    steps = "FROM localhost/carme-base-0 AS stage0\nARG PIP_INDEX_URL\nRUN pip install rich\n"
    assert said["containerfile"].startswith(steps)
    assert said["environ"] == {"PIP_INDEX_URL": "http://mirror/simple"}, "for the steps, and in no image"
    [base] = said["bases"]
    assert (base["path"], base["digest"], base["environ"]["CUDA_HOME"]) == ("/srv/whole", DIGEST, "/cuda")
    assert said["path"].startswith("/opt/x/bin:/bin:/opt/venv/bin")
    assert (said["context"], said["network"], said["bytes"]) == ("", True, 1 << 30)


async def test_it_is_an_image_of_its_users_home_with_its_own_variables(part: Any, session: Session) -> None:
    spawner = SpawnerOfSystems()
    build, _ = await open_build(part, spawner, session, asked())
    await ended(part, build)
    image, site = await image_and_site(part, spawner, ALICE, "mine")
    assert (image.path, image.format, image.layers) == (f"{ALICE.home}/.carme/images/{build.id}/rootfs", "dir", ())
    spec = render(build.id, ALICE, session.request, image, Server((), {}, "http://x/y", "n"), site)
    plan = json.loads(spec.data)["plan"]
    assert image.path in plan["preflight"], "nothing starts without it"
    assert (plan["environ"]["TORCH_HOME"], plan["environ"]["CUDA_HOME"]) == ("/models", "/cuda")
    assert "OTHER" not in plan["environ"], "the site's list of names holds"
    assert ":/opt/x/bin:" in plan["environ"]["PATH"]
    bob = SpawnerOfSystems()
    bob.user.name = "bob"
    with pytest.raises(Exception, match="no longer offered"):
        await image_and_site(part, bob, ALICE, "mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM nowhere\n", "FROM nowhere: you are offered no such image. You may use default"),
        (f"FROM whole@{OTHER}\n", "offered no such image"),
        (f"FROM {OTHER}\n", "offered no such image"),
        ("FROM layered\n", "has packages on top of another image"),
        ("FROM squashed\n", "is kept as one file"),
        ("FROM hosted\n", "has no system of its own"),
        ("FROM docker.io/library/python:3.12\n", "is not allowed here. This site allows none"),
        ("FROM whole\nCOPY . /x\n", "takes files of its folder"),
        ("FROM whole\nENV A\n", "Line 2: ENV A has no value"),
    ],
)
async def test_what_may_not_be_built_is_refused_before_anything_is_written(
    part: Any, session: Session, text: str, said: str
) -> None:
    with pytest.raises(CannotBuild) as refused:
        await open_build(part, SpawnerOfSystems(), session, asked(text))
    assert said in refused.value.message
    assert part.client.specs == []
    assert await builds_of(part, "alice") == []


async def test_an_image_of_the_store_that_the_user_is_not_offered_is_no_base(part: Any, session: Session) -> None:
    spawner = SpawnerOfSystems()
    first, _ = await open_build(part, spawner, session, asked(f"FROM {DIGEST}\nRUN x\n"))
    assert first.base == "whole"
    await ended(part, first)
    bob = SpawnerOfSystems()
    bob.user.name = "bob"
    with pytest.raises(CannotBuild, match="an image that a user has built"):
        await open_build(part, bob, session.replace(user="bob"), replace(asked("FROM mine\n"), name="other"))


async def test_a_registry_that_the_site_allows_is_fetched_in_the_job(part: Any, session: Session) -> None:
    part.images.settings.build_registries = ["127.0.0.1:5000/*", "docker.io/library/*"]
    text = f"FROM docker.io/library/gcc:14 AS one\nFROM 127.0.0.1:5000/lab:1@{OTHER}\nCOPY --from=one /x /x\n"
    build, _ = await open_build(part, SpawnerOfSystems(), session, asked(text))
    assert build.base_digest == OTHER
    bases = work(part)["build"]["bases"]
    assert [(each["reference"], each["plain"]) for each in bases] == [
        ("docker.io/library/gcc:14", False),
        (f"127.0.0.1:5000/lab@{OTHER}", True),
    ]


async def test_files_are_of_a_folder_in_the_home(part: Any, session: Session) -> None:
    text = "FROM whole\nCOPY . /x\n"
    for context in ("/etc", ALICE.home, f"{ALICE.home}/../bob", "lab", f"{ALICE.home}/a\nb"):
        with pytest.raises(CannotBuild, match="must be below your home"):
            await open_build(part, SpawnerOfSystems(), session, asked(text, context=context))
    await open_build(part, SpawnerOfSystems(), session, asked(text, context=f"{ALICE.home}/lab"))
    assert work(part)["build"]["context"] == f"{ALICE.home}/lab"


async def test_a_site_without_network_for_builds_says_so(part: Any, session: Session) -> None:
    part.images.settings.build_network = False
    with pytest.raises(CannotBuild, match="builds have no network here"):
        await open_build(part, SpawnerOfSystems(), session, asked("FROM whole\nADD https://x/y /y\n"))
    await open_build(part, SpawnerOfSystems(), session, asked())
    assert work(part)["build"]["network"] is False


async def test_a_runtime_that_starts_no_folders_is_named(part: Any, session: Session) -> None:
    class Pyxis(SpawnerOfSystems):
        def site(self, home: str = "") -> Any:
            runtime = SimpleNamespace(name="pyxis", formats=frozenset({"sqfs"}))
            return replace(super().site(home), runtime=runtime)

    with pytest.raises(CannotBuild, match="which pyxis, the container runtime"):
        await open_build(part, Pyxis(), session, asked())


async def test_packages_of_conda_come_from_the_sites_channels(part: Any, session: Session) -> None:
    text = "channels: [ours]\ndependencies: [python=3.12, gdal, pip, {pip: [rich]}]\n"
    build, _ = await open_build(part, SpawnerOfSystems(), session, asked(text, "environment"))
    assert (build.kind, build.base) == ("conda", "default")
    found = work(part)
    said = found["build"]
    assert said["channels"] == {"ours": "file:///srv/conda"}
    assert said["packages"] == ["python=3.12", "gdal", "pip", "ipykernel"]
    assert said["pip"] == "rich\n"
    assert found["plan"]["argv"][-3] == "python3", "in the container of the base"
    with pytest.raises(CannotBuild, match="channel defaults is not allowed"):
        await open_build(
            part, SpawnerOfSystems(), session, asked("channels: [defaults]\ndependencies: [gdal]\n", "environment")
        )
