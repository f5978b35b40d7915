"""Pages of the visitor's own images: the form, the log, and a removal that asks first; nothing of anybody else's."""

from __future__ import annotations

import html
import json
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forged_hub import Browser
from test_home_sessions import Part, SpawnerWithSession, alice, hub, part

from carme_hub.containers.registry import runtime
from carme_hub.domain.images.builds import Build, BuildState, CannotBuild
from carme_hub.images.offered import OfferedImages
from carme_hub.images.settings import CarmeImages
from carme_hub.slurm.owner.ways import FileNotRead
from carme_hub.spawners.handlers.images import pages, rest
from carme_hub.store.engine import make_engine, migrate
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.images.nodes import NodeImageStore

__all__ = ["alice", "hub", "part"]
BUILDS = "/hub/carme/images/builds"


class HelperThatReadsLogs:
    """Reads the logs of builds as their users; ``logs``: bytes by path. ``looked``: where it looked."""

    def __init__(self) -> None:
        self.logs: dict[str, bytes] = {}
        self.looked: list[str] = []

    async def file(self, user: str, asked: Any) -> tuple[dict[str, Any], bytes]:
        assert user == "alice"
        self.looked.append(asked["path"])
        raw = self.logs.get(asked["path"])
        if raw is None:
            raise FileNotRead("no such file", reason="missing")
        offset = max(0, asked["offset"] + (len(raw) if asked["offset"] < 0 else 0))
        about = {"size": len(raw), "offset": offset, "modified": 1.0, "inode": 7}
        return about, raw[offset : offset + asked["length"]]


@pytest.fixture
def images(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    engine = make_engine(f"sqlite:///{tmp_path}/images.sqlite")
    migrate(engine)
    log = logging.getLogger("test")
    found = OfferedImages(CarmeImages(), ImageStore(engine, "lab"), NodeImageStore(engine, "lab"), log)
    more: Any = part
    more.images, more.log, more.own_jobs = found, log, HelperThatReadsLogs()
    owner = lambda _spawner: SimpleNamespace(home="/home/alice")  # noqa: E731
    monkeypatch.setattr(SpawnerWithSession, "owner", owner, raising=False)
    site = lambda _spawner: SimpleNamespace(runtime=runtime("bubblewrap"))  # noqa: E731
    monkeypatch.setattr(SpawnerWithSession, "site", site, raising=False)
    for module in (pages, rest):
        monkeypatch.setattr(module, "started_hub", lambda: part)
    yield found
    engine.dispose()


def add(images: Any, **changes: Any) -> Build:
    made = Build(str(uuid.uuid4()), "alice", "tools", "base", "sha256:" + "1" * 64, text="rich<2\n", created=1e9)
    made = replace(made, state=BuildState.READY, **changes)
    images.builds.add(made)
    return made


async def get(browser: Browser, path: str) -> tuple[int, str]:
    status, text, _ = await browser.get(path)
    return status, " ".join(html.unescape(text).split())


async def test_the_list_has_the_visitors_own_and_the_form(alice: Browser, images: Any) -> None:
    add(images)
    add(images, name="secret", user="bob")
    status, text = await get(alice, BUILDS)
    assert status == 200
    assert "tools</a>" in text
    assert "secret" not in text
    assert 'action="/hub/carme/images/builds#carme-build-new"' in text, "a refusal is seen where the form is"
    assert "You may have 5 images of 10 GiB at most" in text


async def test_the_list_says_how_an_image_was_built_and_the_form_what_can_be(alice: Browser, images: Any) -> None:
    text = "FROM base\nRUN <make>\n"
    whole = add(images, name="whole", kind="containerfile", base="docker.io/x/y:1", base_digest="", text=text)
    add(images, name="gis", kind="conda")
    status, text = await get(alice, BUILDS)
    assert status == 200
    assert "By a Containerfile on top of docker.io/x/y:1, begun" in text
    assert "With packages of conda on top of base, begun" in text
    assert '<option value="containerfile" >' in text
    assert "an environment.yml, with channels conda-forge" in text
    status, text, _ = await alice.get(f"{BUILDS}/{whole.id}")
    assert "RUN &lt;make&gt;" in text


async def test_a_refused_form_is_shown_again_as_it_was_sent(
    alice: Browser, images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def refuses(_hub: Any, _spawner: Any, _origin: Any, wanted: Any, _key: str) -> Any:
        asked.append(wanted)
        raise CannotBuild("The list names no package.")

    async def origin(_hub: Any, _spawner: Any, options: Any) -> Any:
        asked.append(options)
        return SimpleNamespace()

    monkeypatch.setattr(pages, "open_build", refuses)
    monkeypatch.setattr(pages, "origin_of", origin)
    await get(alice, BUILDS)
    sent = {"name": "mine", "text": "# <nothing>\n", "image": "base", "minutes": "20", "kind": "requirements"}
    status, text, _ = await alice.post(BUILDS, sent)
    assert status == 409
    assert "The list names no package." in text
    assert "# &lt;nothing&gt;" in text
    options, wanted = asked
    assert options == {"image": "base"}
    assert (wanted.name, wanted.kind, wanted.minutes) == ("mine", "requirements", 20)


@pytest.mark.parametrize(
    ("active", "named", "path"),
    [
        (False, True, "spawn?opt-image=my.tools"),
        (True, True, "spawn/alice/my-tools?opt-image=my.tools"),
        (True, False, ""),
    ],
)
def test_a_link_leads_to_a_form_and_not_into_the_server_that_runs(active: bool, named: bool, path: str) -> None:
    user = SimpleNamespace(name="alice", spawner=SimpleNamespace(active=active))
    assert rest.start_path(user, "my.tools", named=named) == path


async def test_the_catalogue_leads_to_a_form(alice: Browser, images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/hub/carme/images/start?opt-profile=cpu&opt-image=//evil.example"
    status, _, answer = await alice.ask("GET", path)
    assert (status, answer["Location"]) == (303, "/hub/home"), "her server runs, and she may have no other"
    monkeypatch.setattr(SpawnerWithSession, "active", False)
    status, _, answer = await alice.ask("GET", path)
    assert (status, answer["Location"]) == (303, "/hub/spawn?opt-profile=cpu&opt-image=%2F%2Fevil.example")


def test_the_name_of_the_server_is_one_for_jupyterhub() -> None:
    user = SimpleNamespace(name="alice", spawner=SimpleNamespace(active=True))
    path = rest.start_path(user, f"2026-{'x' * 35}", named=True)
    assert path.partition("?")[0] == f"spawn/alice/image-2026-{'x' * 19}"


async def test_a_runtime_that_builds_nothing_is_said_in_place_of_the_form(
    alice: Browser, images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SpawnerWithSession, "site", lambda _self: SimpleNamespace(runtime=runtime("pyxis")), raising=False
    )
    status, text = await get(alice, BUILDS)
    assert status == 200
    assert "no image is built in such a step" in text
    assert "<form" not in text.partition('id="carme-build-new"')[2].partition("</main>")[0]


async def test_what_was_not_built_is_changed_and_built_again(alice: Browser, images: Any) -> None:
    one = add(images, kind="packages", description="Colours")
    images.builds.change(one.id, state=BuildState.FAILED, problem="The build ended with exit code 1.")
    other = add(images, name="secret", user="bob", text="secret-tool\n")
    status, text = await get(alice, BUILDS)
    assert f'href="/hub/carme/images/builds?again={one.id}#carme-build-new"' in text
    status, text = await get(alice, f"{BUILDS}?again={one.id}")
    assert status == 200
    assert 'value="tools"' in text
    assert ">rich<2 </textarea>" in text
    assert 'value="Colours"' in text
    status, text = await get(alice, f"{BUILDS}?again={other.id}")
    assert status == 404
    assert "secret-tool" not in text
    assert (await get(alice, f"{BUILDS}?again=nothing"))[0] == 200


async def test_the_page_of_a_build_has_its_log_and_follows_it(alice: Browser, images: Any, part: Part) -> None:
    one = add(images, created=time.time())
    images.builds.change(one.id, state=BuildState.BUILDING)
    status, text = await get(alice, f"{BUILDS}/{one.id}")
    assert status == 200
    assert "The job waits in the queue, or begins." in text
    assert 'data-live="yes"' in text, "it is followed from the beginning"
    status, text = await get(alice, f"{BUILDS}/{one.id}/log?of=build&from=0")
    assert json.loads(text)["said"] == "The job waits in the queue, or begins."
    helper: Any = part.own_jobs  # type: ignore[attr-defined]
    [path] = set(helper.looked)
    assert path.endswith(f"/.carme/sessions/{one.id}/job.log")
    helper.logs[path] = b"Collecting <rich>\n"
    status, text = await get(alice, f"{BUILDS}/{one.id}")
    assert "Collecting <rich>" in text
    assert 'data-live="yes"' in text
    status, text = await get(alice, f"{BUILDS}/{one.id}/log?of=build&from=11&inode=7")
    said = json.loads(text)
    assert (said["text"], said["end"], said["live"]) == ("<rich>\n", 18, True)
    assert (await get(alice, f"{BUILDS}/{one.id}/log?from=-1"))[0] == 400


async def test_a_removal_asks_first_and_is_never_of_somebody_else(alice: Browser, images: Any) -> None:
    one, other = add(images), add(images, name="secret", user="bob")
    status, text = await get(alice, f"{BUILDS}/{one.id}/remove")
    assert status == 200
    assert "Remove image tools?" in text
    assert images.builds.build(one.id, 1e9).state is BuildState.READY, "a GET changes nothing"
    for path in ("", "/remove", "/log"):
        assert (await get(alice, f"{BUILDS}/{other.id}{path}"))[0] == 404
    assert (await alice.post(f"{BUILDS}/{other.id}/remove", {}))[0] == 404
    assert images.builds.build(other.id, 1e9).state is BuildState.READY
    status, _, _ = await alice.post(f"{BUILDS}/{one.id}/remove", {})
    assert status in (200, 303)
    assert images.builds.build(one.id, 1e9).state is BuildState.REMOVED
