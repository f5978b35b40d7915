"""``carme-hub image publish``: what is offered is what is wanted in the end, and one failure stops no other build."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from carme_hub.cli.images import publish as command
from carme_hub.domain.images.builds import Build, BuildState, Wanted
from carme_hub.domain.images.offers import CatalogueImage, Offer, To
from carme_hub.images.settings import CarmeImages
from carme_hub.store.engine import CarmeStore
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.images.catalogue import ImageStore

ALLOWED = Wanted(Offer(To.EVERYBODY, "", "alice", 1.0), allowed="ada")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path / 'carme.sqlite'}").open()
    yield engine
    engine.dispose()


class Publishing:
    """One build that is due, and the command, in which the work on files is forged."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.builds, self.images = BuildStore(engine, "lab"), ImageStore(engine, "lab")
        self.build = Build(
            str(uuid.uuid4()), "alice", "tools", "base", "sha256:x", state=BuildState.READY, wanted=ALLOWED
        )
        self.builds.add(replace(self.build, wanted=None))
        self.builds.change(self.build.id, wanted=ALLOWED)
        self.meanwhile: Any = lambda: None
        self.taken: list[str] = []
        monkeypatch.setattr(command, "publish", self._forged_publish)

    def _forged_publish(self, build: Build, store: Path, _options: object) -> Path:
        self.taken.append(build.id)
        self.meanwhile()
        return store / build.name

    def run(self) -> bool:
        app = command.PublishApp()
        return app._publish(self.build, self.builds, self.images, CarmeImages())

    def offered_to(self) -> set[str]:
        """Return to whom the store's image is offered."""
        self.images.put([CatalogueImage("tools", "/store/tools", source=f"layer:{self.build.id} of alice")], 5.0)
        found = self.images.image("tools")
        assert found is not None
        return {each.to.value for each in found.offers}

    def problem(self) -> str:
        found = self.builds.build(self.build.id, 9.0)
        assert found is not None
        return found.wanted.problem if found.wanted else ""


@pytest.fixture
def publishing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Publishing:
    return Publishing(engine, monkeypatch)


def test_an_image_is_its_users_and_of_those_to_whom_it_is_offered(publishing: Publishing) -> None:
    assert publishing.run()
    assert publishing.offered_to() == {"user", "everybody"}


@pytest.mark.parametrize("wanted", [None, replace(ALLOWED, problem="ada refuses it: no")])
def test_what_is_withdrawn_or_refused_meanwhile_is_its_users_alone(
    publishing: Publishing, wanted: Wanted | None
) -> None:
    publishing.meanwhile = lambda: publishing.builds.change(publishing.build.id, wanted=wanted)
    assert publishing.run()
    assert publishing.offered_to() == {"user"}


def test_offers_of_an_earlier_image_of_that_name_do_not_hold_for_it(publishing: Publishing) -> None:
    publishing.images.put([CatalogueImage("tools", "/store/tools", source="docker://somewhere")], 1.0)
    publishing.images.put([], 2.0)  # it is gone
    assert not publishing.run()
    assert publishing.taken == []
    assert "another image has, or had, its name" in publishing.problem()


def test_a_file_that_cannot_be_written_is_said_of_its_build(publishing: Publishing) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    publishing.meanwhile = full
    assert not publishing.run()
    assert "No space left on device" in publishing.problem()
