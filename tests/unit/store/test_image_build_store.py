"""Images of users in the database: one name for one image, and an end as the job says it."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from carme_hub.domain.cluster.reasons import end_sentence
from carme_hub.domain.images.builds import Build, BuildState, CannotBuild
from carme_hub.domain.images.offers import CatalogueImage, Offer, To
from carme_hub.domain.images.wanted import Wanted
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.images.tables import image_build
from carme_hub.store.sessions import SessionStore


def build(**changes: object) -> Build:
    return replace(Build(str(uuid.uuid4()), "alice", "tools", "base", text="rich\n", created=100.0), **changes)  # type: ignore[arg-type]


def job(engine: Engine, of: Build, state: SessionState, reason: str = "") -> None:
    ended = 150.0 if state is SessionState.ENDED else 0.0
    session = Session(of.id, "lab", "alice", "", Request("cpu", "base", batch="image-tools"), state, 100.0)
    SessionStore(engine).add(session.replace(ended=ended, end_reason=reason, parent="p"))


def test_a_name_is_one_image_until_it_fails_or_is_removed(engine: Engine) -> None:
    builds, images = BuildStore(engine, "lab"), ImageStore(engine, "lab")
    first = build()
    builds.add(first)
    builds.add(first)
    for other in (build(), build(user="bob")):
        with pytest.raises(CannotBuild, match="Another image is called tools"):
            builds.add(other)
    BuildStore(engine, "elsewhere").add(build())
    assert builds.change(first.id, state=BuildState.FAILED)
    second = build()
    builds.add(second)
    assert builds.named("tools", 100.0) == second
    images.put([CatalogueImage("torch", "/x")], 1.0)
    with pytest.raises(CannotBuild, match="torch"):
        builds.add(build(name="torch"))
    images.offer("torch", Offer(To.EVERYBODY, "", "ada", 1.0))
    images.put([], 2.0)
    with pytest.raises(CannotBuild, match="torch"):  # it is gone, and what it was offered to is not
        builds.add(build(name="torch"))
    assert builds.change(second.id, state=BuildState.REMOVED, ended=120.0)
    assert not builds.change(second.id, used=5.0), "a removed one stays as it is"
    assert {first.id, second.id} == set(builds.removed("alice", 0.0, 200.0)) | {first.id}
    assert builds.removed("alice", 119.0, 200.0) == [second.id]


@pytest.mark.parametrize(
    ("state", "reason", "found"),
    [
        (SessionState.RUNNING, "", BuildState.BUILDING),
        (SessionState.ENDED, end_sentence("COMPLETED"), BuildState.READY),
        (SessionState.ENDED, end_sentence("FAILED", (1, 0)), BuildState.FAILED),
        (SessionState.ENDED, "It was cancelled.", BuildState.FAILED),
    ],
)
def test_a_build_ends_as_its_job(engine: Engine, state: SessionState, reason: str, found: BuildState) -> None:
    builds, one = BuildStore(engine, "lab"), build()
    builds.add(one)
    job(engine, one, state, reason)
    read = builds.build(one.id, 110.0)
    assert read is not None
    assert read.state is found
    settled = builds.settle(110.0)
    assert [each.state for each in settled] == ([found] if found is not BuildState.BUILDING else [])
    assert [each.state for each in builds.builds(110.0, "alice")] == [found]
    if reason == end_sentence("FAILED", (1, 0)):
        assert read.problem == "The build ended with exit code 1; its log says why."


def test_a_build_without_a_job_has_failed_after_a_while(engine: Engine) -> None:
    builds, one = BuildStore(engine, "lab"), build()
    builds.add(one)
    for now, state in ((500.0, BuildState.BUILDING), (701.0, BuildState.FAILED)):
        read = builds.build(one.id, now)
        assert read is not None
        assert read.state is state
    assert builds.named("tools", 701.0) is None


def test_what_is_wanted_is_kept_and_forgotten(engine: Engine) -> None:
    builds, one = BuildStore(engine, "lab"), build(state=BuildState.READY)
    builds.add(one)
    wanted = Wanted(Offer(To.GROUP, "ml", "alice", 5.0), "", "it is too large")
    builds.change(one.id, BuildState.READY, wanted=wanted)
    assert builds.builds(1.0) == [replace(one, wanted=wanted)]
    builds.change(one.id, wanted=None, published="tools")
    assert builds.builds(1.0, "alice") == [replace(one, published="tools")]
    assert not builds.change(one.id, BuildState.BUILDING, used=1.0)
    assert builds.builds(1.0, "bob") == []


def test_what_is_wanted_is_changed_only_as_it_was_looked_at(engine: Engine) -> None:
    builds, one = BuildStore(engine, "lab"), build(state=BuildState.READY)
    builds.add(one)
    first = Wanted(Offer(To.GROUP, "ml", "alice", 5.0))
    assert builds.change_wanted(one.id, None, first)
    later = first.put_off("the disk is full", 10.0)
    assert builds.change_wanted(one.id, first, later)
    assert not builds.change_wanted(one.id, first, None), "it is something else meanwhile"
    assert builds.builds(1.0)[0].wanted == later
    assert builds.change_wanted(one.id, later, None)
    builds.change(one.id, state=BuildState.REMOVED)
    assert not builds.change_wanted(one.id, None, first)


def test_offers_of_an_earlier_release_are_read_and_names_that_are_no_utf8_can_be_shown(engine: Engine) -> None:
    builds, one = BuildStore(engine, "lab"), build(state=BuildState.READY)
    builds.add(one)
    old = {"to": "group", "name": "ml", "by": "alice", "at": 5.0, "allowed": "", "problem": "/x\udcff leads out"}
    with engine.begin() as connection:
        connection.execute(image_build.update().values(wanted=old))
    [found] = builds.builds(1.0)
    assert found.wanted == Wanted(Offer(To.GROUP, "ml", "alice", 5.0), problem="/x\\udcff leads out")
