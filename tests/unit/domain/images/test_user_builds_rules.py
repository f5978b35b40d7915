"""Rules of images that users build: what may be asked for, how many, and when one is told of and removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carme_hub.domain.images.builds import (
    Build,
    BuildState,
    CannotBuild,
    Limits,
    bill_of_materials,
    check_room,
    checked_description,
    checked_name,
    checked_text,
    is_over,
    is_to_be_told,
    limits_for,
    own,
    removed_at,
    requirements_of_environment,
)
from carme_hub.domain.images.offers import Offer, To
from carme_hub.domain.images.wanted import Step, Wanted, words_of

DAY = 86_400.0
READY = Build("id", "alice", "tools", "base", state=BuildState.READY, created=1.0, ended=2.0)


def test_packages_are_lines_as_pip_takes_them() -> None:
    text = checked_text(
        "# tools\nxarray==2026.10.0\r\n\nzarr>=3 ; python_version > '3.9'\n--extra-index-url https://x/y\n"
    )
    assert text.splitlines()[1:] == [
        "xarray==2026.10.0",
        "",
        "zarr>=3 ; python_version > '3.9'",
        "--extra-index-url https://x/y",
    ]
    assert checked_text("tool @ git+https://example.org/tool@v1\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no package"),
        ("# nothing\n", "no package"),
        ("--index-url https://x/simple", "no package"),
        ("-r other.txt\nrich", "list the packages themselves"),
        ("-e .\nrich", "list the packages themselves"),
        ("--editable .", "list the packages themselves"),
        ("--target=/etc\nrich", "list the packages themselves"),
        ("./tool", "is a file"),
        ("~/tool.whl", "is a file"),
        ("file:///etc/passwd", "is a file"),
        ("tool @ /home/alice/tool", "is a file"),
        ("--index-url https://me:secret@host/simple\nrich", "contain a password"),
        ("rich\0", "lines of text"),
        ("rich\ud800", r"cannot be shown \(U\+D800\)"),
        ("rich  # \u202eerofeb", r"cannot be shown \(U\+202E\)"),
        ("rich\x1b[2J", r"cannot be shown \(U\+001B\)"),
        ("x" * (33 << 10), "too long"),
        (7, "lines of text"),
    ],
)
def test_what_the_job_cannot_have_is_refused_with_what_to_do(text: object, said: str) -> None:
    with pytest.raises(CannotBuild, match=said):
        checked_text(text)


def test_the_pip_part_of_an_environment_counts_and_conda_packages_are_named() -> None:
    value = {"channels": ["conda-forge"], "dependencies": ["python=3.11", "pip", {"pip": ["rich", "zarr==3"]}]}
    assert requirements_of_environment(value) == "rich\nzarr==3\n"
    with pytest.raises(CannotBuild, match=r"not built here: gdal=3\.9, python-blosc"):
        requirements_of_environment({"dependencies": ["gdal=3.9", "python-blosc", {"pip": ["rich"]}]})
    for wrong in ("rich", {"dependencies": "rich"}, {"dependencies": [{"pip": [["a"]]}]}, {"dependencies": [[1]]}):
        with pytest.raises(CannotBuild):
            requirements_of_environment(wrong)


@pytest.mark.parametrize("name", ["", "Tools", "../x", "-x", "a b", "x" * 41, 5])
def test_a_name_is_plain(name: object) -> None:
    with pytest.raises(CannotBuild):
        checked_name(name)
    assert checked_name("climate-2026.1") == "climate-2026.1"


def test_of_several_groups_the_largest_limit_of_each_kind_holds() -> None:
    said = {"": {"builds": 1, "days": 30}, "ml": {"builds": 9}, "big": {"gib": 40, "builds": 3}}
    assert limits_for([], said) == Limits(1, 10.0, 120, 30.0)
    assert limits_for(["ml", "big"], said) == Limits(9, 40.0, 120, 30.0)
    assert limits_for(["ml"], {}) == Limits()


def test_there_is_room_for_as_many_as_the_limit_says() -> None:
    check_room([READY], Limits(2))
    check_room([replace(READY, state=BuildState.FAILED)] * 5, Limits(1))
    with pytest.raises(CannotBuild, match=r"have tools\. Remove one"):
        check_room([READY, replace(READY, state=BuildState.REMOVED)], Limits(1))
    with pytest.raises(CannotBuild, match="may not build"):
        check_room([], Limits(0))


def test_nobody_loses_an_image_who_was_not_told_two_weeks_before() -> None:
    build = replace(READY, days=90.0)
    assert removed_at(build) == 2.0 + 90 * DAY
    assert not is_to_be_told(build, 75 * DAY)
    assert is_to_be_told(build, 77 * DAY)
    assert not is_over(build, 200 * DAY), "nobody was told: the service was down"
    told = replace(build, told=200 * DAY)
    assert not is_over(told, 213 * DAY)
    assert is_over(told, 214 * DAY)
    used = replace(told, used=201 * DAY)
    assert not is_over(used, 214 * DAY)
    assert is_to_be_told(used, (201 + 76) * DAY), "told again, for the new date"
    assert not is_to_be_told(replace(build, state=BuildState.BUILDING), 99 * DAY)


def test_a_description_is_one_line_that_can_be_shown() -> None:
    assert checked_description(" a\n b ") == "a b"
    with pytest.raises(CannotBuild, match="cannot be shown"):
        checked_description("\ud800")


GROUP, EVERYBODY = Wanted(Offer(To.GROUP, "ml", "alice")), Wanted(Offer(To.EVERYBODY, "", "alice"))


def test_a_group_is_offered_it_at_once_and_everybody_by_an_administrator() -> None:
    assert GROUP.step is Step.PUBLISH
    assert EVERYBODY.step is Step.PREPARE
    ready = EVERYBODY.prepared("sha256:1", "rich 14")
    assert ready.step is Step.WAIT
    assert "an administrator has to allow it." in words_of(ready)
    assert ready.decided("ada", with_base=False).step is Step.PUBLISH
    assert GROUP.refused("the scan refuses it").step is Step.WAIT


def test_an_approval_is_for_one_digest_and_void_once_the_files_are_others() -> None:
    assert replace(EVERYBODY, allowed="ada").step is Step.PREPARE, "nothing was looked at"
    assert replace(EVERYBODY, allowed="alice").step is Step.PUBLISH, "an administrator's own"
    changed = EVERYBODY.prepared("sha256:1", "").decided("ada", with_base=False).changed()
    assert (changed.allowed, changed.digest, changed.step) == ("", "", Step.PREPARE)
    assert "have changed since ada allowed it" in words_of(changed.prepared("sha256:2", ""))


def test_an_offer_that_passes_on_its_base_needs_an_administrator_who_knows_that() -> None:
    beyond = GROUP.judged("torch, below it, is not offered to group ml.")
    assert (beyond.needs_leave, beyond.step) == (True, Step.PREPARE)
    ready = beyond.prepared("sha256:1", "")
    assert "torch, below it, is not offered to group ml." in words_of(ready)
    assert ready.decided("ada", with_base=False).step is Step.WAIT
    assert ready.decided("ada", with_base=True).step is Step.PUBLISH
    early = EVERYBODY.prepared("sha256:1", "").decided("ada", with_base=False)
    void = early.judged("torch, below it, is not offered to everybody.")
    assert (void.allowed, void.step) == ("", Step.WAIT)
    assert "What ada has allowed does not count" in words_of(void)
    assert beyond.judged("").step is Step.PUBLISH, "the base is offered to them now"


def test_what_cannot_be_done_now_is_told_as_such_and_tried_again_later_each_time() -> None:
    first = GROUP.put_off("the directory is silent", 100.0)
    assert (first.problem, first.tries, first.again) == ("", 1, 400.0)
    assert "Not offered to group ml yet: the directory is silent." in words_of(first)
    again = first.put_off("the directory is silent", 400.0)
    assert again.again == 1000.0
    for _ in range(2000):
        again = again.put_off("x", 0.0)
    assert again.again == 6 * 3600.0
    assert again.refused("no").waiting == ""


def test_a_user_sees_their_own_that_are_not_removed_the_newest_first() -> None:
    builds = [READY, replace(READY, id="2", created=5.0), replace(READY, id="3", user="bob")]
    assert [each.id for each in own([*builds, replace(READY, id="4", state=BuildState.REMOVED)], "alice")] == [
        "2",
        "id",
    ]


def test_the_parts_are_cyclonedx() -> None:
    found = bill_of_materials("tools", "sha256:1", {"python": {"rich": "14"}, "debian": {"bash": "5"}})
    assert found["bomFormat"] == "CycloneDX"
    assert [each["purl"] for each in found["components"]] == ["pkg:pypi/rich@14", "pkg:deb/debian/bash@5"]
