"""An image of a user that an administrator decides on: made without a name, by its digest, and scanned again."""

from __future__ import annotations

import stat
from dataclasses import replace

import pytest
from rig.user_images import SITE, Place

from carme_hub.containers.build import take as taking
from carme_hub.containers.build.publish import (
    ContentChanged,
    Prepared,
    PublishOptions,
    prepare,
    publish,
    published_before,
    remove_waiting,
)
from carme_hub.containers.build.scan import NotAllowed
from carme_hub.containers.store.check import check_image_files
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.errors import ContainerError


def prepared(place: Place) -> Prepared:
    place.give()
    return prepare(place.build, place.store, PublishOptions())


def test_what_waits_for_an_administrator_has_no_name_and_nobody_else_can_read_it(place: Place) -> None:
    made = prepared(place)
    assert list(made.packages) == ["python rich 14.0"]
    assert place.is_clean(), "no name, and nothing among the images"
    assert stat.S_IMODE(made.folder.parent.stat().st_mode) == 0o700
    [parts] = (place.store / ".parts").iterdir()
    assert stat.S_IMODE(parts.stat().st_mode) == 0o600
    assert prepared(place) == made
    image = publish(place.build, place.store, PublishOptions(), expect=made.digest)
    assert (image / "opt/carme/layer" / SITE / "rich.py").is_file()
    assert not made.folder.exists()
    assert stat.S_IMODE(parts.stat().st_mode) == 0o644
    assert list(check_image_files(StoreFolder(place.store), image.resolve())) == []


def test_what_has_waited_for_days_is_scanned_again(place: Place) -> None:
    made = prepared(place)
    options = PublishOptions(scan=("/bin/sh", "-c", "grep -q pkg:pypi/rich@14.0 && echo CVE-2027-1; exit 1"))
    with pytest.raises(NotAllowed, match="CVE-2027-1"):
        publish(place.build, place.store, options, expect=made.digest)
    assert place.is_clean()


def test_what_waits_no_more_is_removed(place: Place) -> None:
    made = prepared(place)
    remove_waiting(place.store, [made.digest])
    assert made.folder.exists()
    remove_waiting(place.store, [])
    assert not made.folder.exists()
    assert not list((place.store / ".parts").iterdir())


def test_while_it_is_made_nobody_else_can_read_it(place: Place) -> None:
    work = place.store / ".adding-tools"
    command = ("/bin/sh", "-c", f"stat --format='%a %U' {work}; ls -d $0")
    image = place.publish(scan=command)
    [said] = [each for each in place.said if each.startswith("Scanned")]
    assert said.split()[1] in ("710", "700"), said
    assert stat.S_IMODE(image.resolve().stat().st_mode) == 0o755


def test_other_files_than_those_that_were_looked_at_are_not_published(place: Place) -> None:
    made = prepared(place)
    (place.layer / SITE / "rich.py").write_text("import evil\n")
    with pytest.raises(ContentChanged, match=made.digest):
        publish(place.build, place.store, PublishOptions(), expect=made.digest)
    assert place.is_clean()


def test_a_name_that_an_earlier_run_has_set_is_that_image_and_is_not_taken_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = place.publish()
    known = published_before(place.build, place.store)
    assert known is not None
    monkeypatch.setattr(taking, "_TAR", ("false",))
    assert publish(place.build, place.store, PublishOptions(), expect=known.digest) == image
    other = replace(place.build, id="22222222-2222-4222-8222-222222222222")
    assert published_before(other, place.store) is None
    with pytest.raises(ContainerError, match="exists already"):
        publish(other, place.store, PublishOptions())
