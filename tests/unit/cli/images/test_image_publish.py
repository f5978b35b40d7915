"""``carme-hub image publish``: what is offered is what is wanted in the end, and nothing else than what was decided on.

The work on files is forged (``PublisherOfForgedFiles``), the store's names and locks are real.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from carme_hub.cli.images import publish as command
from carme_hub.containers.build.publish import ContentChanged, Prepared, PublishOptions
from carme_hub.containers.build.scan import NotAllowed
from carme_hub.containers.store.folder import Named, StoreBusy, StoreFolder
from carme_hub.domain.images.audience import BASE, BASE_NAME, source_of
from carme_hub.domain.images.builds import Build, BuildState
from carme_hub.domain.images.offers import CatalogueImage, Offer, To
from carme_hub.domain.images.wanted import Wanted
from carme_hub.errors import ContainerError, ContainerUnavailable
from carme_hub.images import publishing as flow
from carme_hub.images.publishing import Published, Publisher
from carme_hub.store.engine import CarmeStore
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.images.catalogue import ImageStore

BASE_DIGEST, ONE, TWO = ("sha256:" + each * 64 for each in "012")
EVERYBODY = Wanted(Offer(To.EVERYBODY, "", "alice", 1.0))
GROUP = Wanted(Offer(To.GROUP, "course", "alice", 1.0))
ALLOWED = EVERYBODY.prepared(ONE, "rich 14").decided("ada", with_base=False)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path / 'carme.sqlite'}").open()
    yield engine
    engine.dispose()


class PublisherOfForgedFiles:
    """One build, ``tools``, whose files have a digest; ``meanwhile`` happens while they are unpacked."""

    def __init__(self, engine: Engine, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.builds, self.images, self.store = BuildStore(engine, "lab"), ImageStore(engine, "lab"), store
        self.now, self.digest = 1000.0, ONE
        self.meanwhile: Callable[[], object] = lambda: None
        self.taken: list[str] = []
        self.said: list[str] = []
        id = str(uuid.uuid4())
        self.build = Build(id, "alice", "tools", "base", BASE_DIGEST, state=BuildState.READY)
        self.builds.add(self.build)
        self.base()
        monkeypatch.setattr(flow, "publish", self._publish)
        monkeypatch.setattr(flow, "prepare", self._prepare)

    def base(self, *offers: Offer, listed: bool = False) -> None:
        """Have the base in the catalogue, offered to everybody unless something else is said."""
        base = CatalogueImage("base", "/store/base", digest=BASE_DIGEST, listed=listed)
        self.images.put([base], 1.0)
        for each in self.images.image("base").offers:  # type: ignore[union-attr]
            self.images.take_back("base", each.to, each.name)
        for each in offers or (Offer(To.EVERYBODY),):
            self.images.offer("base", each)

    def want(self, wanted: Wanted | None) -> None:
        self.builds.change(self.build.id, wanted=wanted)

    def _prepare(self, build: Build, store: Path, _options: object, _way: object = None) -> Prepared:
        self.taken.append(build.id)
        self.meanwhile()
        return Prepared(store / ".waiting" / self.digest, self.digest, ["python rich 14"])

    def _publish(self, build: Build, store: Path, _options: object, expect: str = "", _way: object = None) -> Path:
        self.taken.append(build.id)
        self.meanwhile()
        if expect not in ("", self.digest):
            raise ContentChanged("other files")
        self.point(build)
        return store / build.name

    def point(self, build: Build) -> None:
        """Let the name stand for the image, as the last step on files does."""
        folder = StoreFolder(self.store)
        image = self.digest.replace(":", "-")
        (folder.digests / image).mkdir(parents=True, exist_ok=True)
        folder.point(Named(build.name, image, self.digest, source_of(build), "", 1.0))

    def run(self) -> Published:
        said, clock = self.said.append, lambda: self.now
        return Publisher(self.builds, self.images, self.store, PublishOptions, said, clock).run()

    @property
    def stored(self) -> Build:
        found = self.builds.build(self.build.id, self.now)
        assert found is not None
        return found

    @property
    def wanted(self) -> Wanted | None:
        return self.stored.wanted

    def offered_to(self) -> set[str]:
        """Return to whom the store's image is offered."""
        self.images.put([CatalogueImage("tools", "/store/tools", source=source_of(self.build))], 5.0)
        found = self.images.image("tools")
        assert found is not None
        return {each.to.value for each in found.offers}


@pytest.fixture
def site(engine: Engine, open_path: Path, monkeypatch: pytest.MonkeyPatch) -> PublisherOfForgedFiles:
    store = open_path / "store"
    store.mkdir(mode=0o755)
    return PublisherOfForgedFiles(engine, store, monkeypatch)


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_an_image_is_its_users_and_of_those_to_whom_it_is_offered(site: PublisherOfForgedFiles) -> None:
    site.want(GROUP)
    assert site.run() == Published([site.store / "tools"])
    assert (site.stored.published, site.wanted) == ("tools", None)
    assert site.offered_to() == {"user", "group"}
    assert site.run() == Published([]), "there is nothing to do any more"


def test_an_administrator_decides_on_a_digest_that_was_unpacked_and_scanned(site: PublisherOfForgedFiles) -> None:
    site.want(EVERYBODY)
    assert site.run() == Published([])
    assert site.wanted == EVERYBODY.prepared(ONE, "python rich 14")
    assert site.run() == Published([])
    assert len(site.taken) == 1, "it is looked at once"
    site.want(site.wanted.decided("ada", with_base=False))
    assert site.run().paths == [site.store / "tools"]
    assert site.offered_to() == {"user", "everybody"}


def test_an_approval_does_not_hold_for_files_that_have_changed_since(site: PublisherOfForgedFiles) -> None:
    site.want(ALLOWED)
    site.digest = TWO
    assert site.run() == Published([], failed=1)
    assert site.stored.published == ""
    assert site.wanted is not None
    assert "have changed since ada allowed it" in site.wanted.void
    site.run()
    assert (site.wanted.digest, site.wanted.allowed) == (TWO, ""), "it waits for another decision"
    assert site.run() == Published([])


def test_what_was_allowed_by_an_earlier_release_is_looked_at_first(site: PublisherOfForgedFiles) -> None:
    site.want(replace(EVERYBODY, allowed="ada"))
    site.run()
    assert (site.stored.published, site.wanted) == (
        "",
        replace(EVERYBODY, allowed="ada").prepared(ONE, "python rich 14"),
    )


@pytest.mark.parametrize("wanted", [None, replace(ALLOWED, problem="ada refuses it: no")])
def test_what_is_withdrawn_or_refused_meanwhile_is_its_users_alone(
    site: PublisherOfForgedFiles, wanted: Wanted | None
) -> None:
    site.want(ALLOWED)
    site.meanwhile = lambda: site.want(wanted)
    site.run()
    assert site.offered_to() == {"user"}


def test_offers_of_an_earlier_image_of_that_name_do_not_hold_for_it(site: PublisherOfForgedFiles) -> None:
    site.images.put([CatalogueImage("tools", "/store/tools", source="docker://somewhere")], 1.5)
    site.base()
    site.want(GROUP)
    assert site.run().failed == 1
    assert site.taken == []
    assert site.wanted is not None
    assert "another image has, or had, its name" in site.wanted.problem


def test_a_base_is_not_passed_on_to_a_group_that_is_not_offered_it(site: PublisherOfForgedFiles) -> None:
    site.base(Offer(To.GROUP, "physics"))
    site.want(GROUP)
    site.run()
    assert site.stored.published == ""
    assert site.wanted is not None
    assert site.wanted.beyond == "base, below it, is not offered to group course."
    assert site.wanted.digest == ONE, "an administrator decides"
    site.want(site.wanted.decided("ada", with_base=True))
    assert site.run().paths == [site.store / "tools"]
    assert site.offered_to() == {"user", "group"}


def test_a_base_that_is_offered_to_them_later_needs_nobodys_leave_any_more(site: PublisherOfForgedFiles) -> None:
    site.base(Offer(To.GROUP, "physics"))
    site.want(GROUP)
    site.run()
    site.base(Offer(To.GROUP, "course"))
    assert site.run().paths == [site.store / "tools"]


def test_a_base_that_is_taken_back_meanwhile_is_not_passed_on(site: PublisherOfForgedFiles) -> None:
    site.want(GROUP)
    site.meanwhile = lambda: site.base(Offer(To.GROUP, "physics"))
    site.run()
    assert site.offered_to() == {"user"}


def test_an_approval_that_did_not_know_of_the_base_does_not_count(site: PublisherOfForgedFiles) -> None:
    site.want(ALLOWED)
    site.base(Offer(To.GROUP, "physics"))
    site.run()
    assert site.stored.published == ""
    assert site.wanted is not None
    assert (site.wanted.allowed, site.wanted.digest) == ("", ONE)
    assert "What ada has allowed does not count" in site.wanted.void


def test_a_base_of_the_base_counts(site: PublisherOfForgedFiles) -> None:
    labels = {BASE: TWO, BASE_NAME: "secret"}
    base = CatalogueImage("base", "/x", digest=BASE_DIGEST, source="layer:x of bob on it", labels=labels)
    site.images.put([base, CatalogueImage("secret", "/y", digest=TWO)], 2.0)
    site.images.offer("secret", Offer(To.GROUP, "physics"))
    site.want(GROUP)
    site.run()
    assert site.wanted is not None
    assert site.wanted.beyond == "secret, below it, is not offered to group course."


@pytest.mark.parametrize(
    "error",
    [
        ContainerUnavailable("the scan /x failed with 2: no database"),
        ContainerUnavailable("this machine knows no user alice, or its directory does not answer"),
        StoreBusy("another carme-hub image works on name-tools of /store"),
        OSError(28, "No space left on device"),
        subprocess.CalledProcessError(1, ["cp"]),
        RecursionError("RecursionError"),
    ],
)
def test_what_says_nothing_of_the_image_is_told_as_such_and_tried_again(
    site: PublisherOfForgedFiles, error: Exception
) -> None:
    site.want(GROUP)
    site.meanwhile = raising(error)
    assert site.run() == Published([], failed=1)
    assert site.wanted is not None
    assert (site.wanted.problem, site.wanted.tries) == ("", 1)
    assert str(error) in site.wanted.waiting
    assert site.run() == Published([]), "not at once"
    assert len(site.taken) == 1
    site.now += 301.0
    site.meanwhile = lambda: None
    assert site.run().paths == [site.store / "tools"]


@pytest.mark.parametrize("error", [NotAllowed("the scan refuses it: CVE"), ContainerError("/\udcff -> out leads out")])
def test_what_the_image_itself_does_wrong_refuses_it(site: PublisherOfForgedFiles, error: Exception) -> None:
    site.want(GROUP)
    site.meanwhile = raising(error)
    assert site.run() == Published([], failed=1)
    assert site.wanted is not None
    assert site.wanted.problem
    site.wanted.problem.encode()
    site.now += 1e6
    assert site.run() == Published([])


def test_an_answer_to_what_is_not_wanted_any_more_is_not_written_down(site: PublisherOfForgedFiles) -> None:
    site.want(GROUP)
    other = replace(GROUP, offer=Offer(To.GROUP, "physics", "alice", 2.0))

    def changed() -> None:
        site.want(other)
        raise NotAllowed("no")

    site.meanwhile = changed
    site.run()
    assert site.wanted == other


def test_those_that_were_put_off_come_last(site: PublisherOfForgedFiles) -> None:
    site.want(GROUP.put_off("it stands still", 0.0))
    later = replace(site.build, id=str(uuid.uuid4()), name="more", created=50.0)
    site.builds.add(later)
    site.builds.change(later.id, wanted=GROUP)
    site.run()
    assert site.taken == [later.id, site.build.id]


def test_who_asks_again_comes_after_those_who_wait(site: PublisherOfForgedFiles) -> None:
    site.want(replace(GROUP, offer=replace(GROUP.offer, at=900.0)))  # built first, asked for again and again
    later = replace(site.build, id=str(uuid.uuid4()), name="more", created=50.0)
    site.builds.add(later)
    site.builds.change(later.id, wanted=replace(GROUP, offer=replace(GROUP.offer, at=100.0)))
    site.run()
    assert site.taken == [later.id, site.build.id]


def test_what_its_user_removes_meanwhile_is_offered_to_nobody_else(site: PublisherOfForgedFiles) -> None:
    site.want(GROUP)
    site.meanwhile = lambda: site.builds.change(site.build.id, state=BuildState.REMOVED)
    site.run()
    assert site.offered_to() == {"user"}


def test_what_waits_is_kept_until_it_is_decided(site: PublisherOfForgedFiles) -> None:
    made = site.store / ".waiting" / ONE.replace(":", "-")
    made.mkdir(parents=True)
    site.want(EVERYBODY)
    site.run()
    assert made.exists()
    assert site.wanted is not None
    site.want(replace(site.wanted, problem="ada refuses it: no"))
    site.run()
    assert not made.exists()


def test_a_hostile_name_moves_no_cursor_of_the_terminal(site: PublisherOfForgedFiles) -> None:
    site.want(GROUP)
    site.meanwhile = raising(ContainerError("\x1b[2J\udcff"))
    site.run()
    assert "\\x1b[2J\\udcff" in site.said[-1]


def test_of_two_runs_at_once_the_second_leaves_it_to_the_first(site: PublisherOfForgedFiles) -> None:
    site.want(GROUP)
    found: list[type[Exception]] = []

    def second() -> None:
        site.meanwhile = lambda: None
        try:
            site.run()
        except StoreBusy as error:
            found.append(type(error))

    site.meanwhile = second
    assert site.run().paths == [site.store / "tools"]
    assert found == [StoreBusy]
    assert (site.stored.published, site.wanted) == ("tools", None)
    assert len(site.taken) == 1


def test_the_command_ends_well_where_another_one_is_at_work(
    site: PublisherOfForgedFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = command.PublishApp(store=str(site.store))
    monkeypatch.setattr(app, "configuration", lambda: app.config)
    monkeypatch.setattr(CarmeStore, "open", lambda _self: site.images.engine)
    with StoreFolder(site.store).locked("publish"):
        assert app.make() == 0
    assert "another carme-hub image publish is at work" in capsys.readouterr().err


@pytest.mark.parametrize("killed", ["offer", "change"])
def test_a_run_that_was_killed_after_the_name_is_repaired_by_the_next(
    site: PublisherOfForgedFiles, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    site.want(ALLOWED)
    store: Any = site.images if killed == "offer" else site.builds
    with monkeypatch.context() as only:
        only.setattr(store, killed, _killed)
        with pytest.raises(KeyboardInterrupt):
            site.run()
    assert os.path.lexists(site.store / "tools")
    assert site.stored.published == ""
    done = site.run()
    assert done.failed == 0
    assert (site.stored.published, site.wanted) == ("tools", None)
    assert site.offered_to() == {"user", "everybody"}
    assert len(site.taken) == 1, "its files are not taken again"


def _killed(*_args: object, **_more: object) -> bool:
    raise KeyboardInterrupt


def test_what_is_withdrawn_after_such_an_end_is_its_users_alone(site: PublisherOfForgedFiles) -> None:
    site.point(site.build)
    site.run()
    assert (site.stored.published, site.offered_to()) == ("tools", {"user"})


def test_a_name_of_another_build_is_not_taken_for_it(site: PublisherOfForgedFiles) -> None:
    site.point(replace(site.build, id=str(uuid.uuid4())))
    site.run()
    assert site.stored.published == ""
