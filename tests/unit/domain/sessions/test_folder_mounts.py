"""Which shared folders a request may name, and what becomes of them."""

from __future__ import annotations

import pytest

from carme_hub.domain.folders.mounts import MOST, Mountable, as_text, chosen, without_lost
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.profile_choice import choose
from carme_hub.errors import ProfileNotAllowed

GENOMES = Mountable("0123456789ab", "genomes", "rw", "/srv/folders/0123456789ab/data", "ann")
WHALES = Mountable("ba9876543210", "whales", "ro", "/srv/folders/ba9876543210/data", "ben", dataset=True, listed=False)
OFFERED = (GENOMES, WHALES)


def folders(option: object) -> object:
    request = choose_with(option)
    return [(mount["id"], mount["mode"]) for mount in request.folders]


def choose_with(option: object):  # type: ignore[no-untyped-def]
    from carme_hub.domain.sessions.profile_choice import examine, require_valid

    profile = Profile("small", "Small")
    options = {"profile": "small", **({} if option is None else {"folders": option})}
    return require_valid(*examine([profile], options, accounts=None, images=["base"], folders=OFFERED))


@pytest.mark.parametrize(
    "option",
    [
        "genomes:rw,whales:ro",
        "0123456789ab:rw, ba9876543210",
        [{"id": "genomes", "mode": "rw"}, {"id": "ba9876543210"}],
        [{"id": "0123456789ab", "mode": "rw"}, {"id": "whales", "mode": "ro"}],
    ],
)
def test_names_and_ids_in_a_text_or_a_list_are_the_same_request(option: object) -> None:
    assert folders(option) == [(GENOMES.id, "rw"), (WHALES.id, "ro")]


def test_without_a_choice_there_are_none() -> None:
    assert folders(None) == folders("") == folders([]) == []


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("other", "The folder “other” is not shared with you."),
        ("genomes,genomes:rw", "The folder “genomes” is named twice."),
        ("genomes,0123456789ab", "The folder “genomes” is named twice."),
        ("whales:rw", "You may only read the folder “whales”."),
        ("genomes:rwx", "The folder “genomes” is mounted as ro or rw."),
        ("../etc", "The folder “../etc” is not shared with you."),
        ("\x1b[31m", "The folder “?[31m” is not shared with you."),
        ({"id": "genomes"}, "folders is a text, or a list"),
        ([{"id": "genomes", "path": "/etc"}], "each of the folders has id and mode"),
        ([{"id": 7}], "each of the folders has id and mode"),
        (["genomes"], "each of the folders has id and mode"),
    ],
)
def test_anything_else_is_refused_and_says_why(option: object, why: str) -> None:
    with pytest.raises(ProfileNotAllowed, match=why.replace("[", r"\[").replace("?", r"\?").replace(".", r"\.")):
        folders(option)


def test_a_site_without_folders_takes_none() -> None:
    with pytest.raises(ProfileNotAllowed, match="is not shared with you"):
        choose([Profile("small", "Small")], {"folders": "genomes"}, accounts=None, images=["base"])


def test_there_are_not_too_many() -> None:
    many = [Mountable(f"{number:012x}", f"f{number}", "ro", "/x") for number in range(MOST + 1)]
    assert chosen(",".join(one.name for one in many), many)[1] == [f"A session has at most {MOST} folders."]


def test_an_earlier_choice_loses_what_is_shared_no_more_and_writes_no_more_than_it_may() -> None:
    assert without_lost("genomes:rw,gone:ro,whales:rw", OFFERED) == "0123456789ab:rw,ba9876543210:ro"
    assert as_text([{"id": "a"}, {"id": "b", "mode": "rw"}]) == "a:ro,b:rw"
