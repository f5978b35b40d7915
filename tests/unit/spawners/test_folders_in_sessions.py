"""Shared folders from the form to the container: what is shown, sent, checked, remembered and mounted."""

from __future__ import annotations

import logging
import re

import pytest
from sqlalchemy import Engine

from carme_hub.containers.bubblewrap import Bubblewrap
from carme_hub.containers.runtime import Image
from carme_hub.domain.folders.folder import Folder, FolderState, Member, MemberState, OwnerKind, SubjectKind
from carme_hub.domain.folders.mounts import Mountable
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import ProfileNotAllowed, Refused
from carme_hub.folders.settings import CarmeFolders
from carme_hub.spawners.form.form import Offer, render_form
from carme_hub.spawners.form.options import checked_options, options_from_form
from carme_hub.spawners.job_script import Owner, Site, container_of, rank_part
from carme_hub.spawners.shared_folders import FolderAccess
from carme_hub.store.engine import make_engine, migrate
from carme_hub.store.folders.store import Event, FolderStore, Written

ID, OTHER = "0123456789ab", "ba9876543210"
GENOMES = Mountable(ID, "genomes", "rw", f"/srv/folders/{ID}/data", "ann")
WHALES = Mountable(OTHER, "whales", "ro", f"/srv/folders/{OTHER}/data", "ben", dataset=True, listed=False)
PROFILES = (Profile("small", "Small"), Profile("large", "Large"))


def offer(**changes: object) -> Offer:
    values = {"profiles": PROFILES, "images": {"base": ""}, "folders": (GENOMES, WHALES), **changes}
    return Offer(**values)  # type: ignore[arg-type]


def shown(html: str, slug: str, id: str = ID) -> str:
    """Return the value that the form shows for a folder, "?" without a control."""
    found = re.search(rf'<select[^>]*name="{slug}\.folder-{id}".*?</select>', html, re.S)
    if found is None:
        return "?"
    selected = re.search(r'<option value="([^"]*)"\s+selected', found[0])
    return selected[1] if selected else "none selected"


def test_the_form_has_each_listed_folder_in_each_profile() -> None:
    html = render_form(offer())
    assert shown(html, "small") == shown(html, "large") == ""
    assert shown(html, "small", OTHER) == "?"
    assert "/shared/genomes, of ann" in html
    assert "Shared folder genomes" in html


def test_the_form_shows_what_was_chosen_with_each_profile_the_last_time() -> None:
    html = render_form(offer(remembered={"large": f"{ID}:rw,{OTHER}:ro"}))
    assert (shown(html, "small"), shown(html, "large"), shown(html, "large", OTHER)) == ("", "rw", "ro")


def test_the_last_start_without_folders_shows_none_for_its_profile() -> None:
    html = render_form(offer(remembered={"small": f"{ID}:rw"}), last={"profile": "small"})
    assert shown(html, "small") == ""


def test_the_last_start_is_filled_in_without_what_is_shared_no_more() -> None:
    last = {"profile": "large", "folders": f"{ID}:rw,gone:ro"}
    html = render_form(offer(folders=(Mountable(ID, "genomes", "ro", "/x", "ann"),)), last=last)
    assert shown(html, "large") == "ro"


def test_a_refused_choice_is_shown_at_a_folder_and_stays_filled_in() -> None:
    options = options_from_form(
        {"profile": ["small"], f"small.folder-{ID}": ["rw"], "small.folder-ffffffffffff": ["ro"]}
    )
    request, problems = offer().examine(options)
    assert request is None
    html = render_form(offer(), options=options, problems=problems)
    assert shown(html, "small") == "rw"
    assert "The folder “ffffffffffff” is not shared with you." in html


def test_controls_links_and_bodies_become_one_option() -> None:
    form = {
        "profile": ["small"],
        f"small.folder-{ID}": ["rw"],
        f"small.folder-{OTHER}": [""],
        f"large.folder-{ID}": ["ro"],
    }
    assert options_from_form(form) == {"profile": "small", "folders": f"{ID}:rw"}
    assert options_from_form({f"folder-{ID}": ["ro"], "folders": ["whales"]}) == {"folders": f"whales,{ID}:ro"}
    assert checked_options({"folders": [{"id": ID, "mode": "rw"}]}) == {"folders": f"{ID}:rw"}
    with pytest.raises(ProfileNotAllowed, match="each of the folders has id and mode"):
        checked_options({"folders": ["x"]})


@pytest.fixture
def store() -> FolderStore:
    engine: Engine = make_engine("sqlite://")
    migrate(engine)
    return FolderStore(engine, "sun")


def access(store: FolderStore) -> FolderAccess:
    settings = CarmeFolders(roots={"projects": "/srv/folders"})
    return FolderAccess(settings, store, logging.getLogger("test"), lambda: 1000.0)


def add(store: FolderStore, applied: str = "rw", expires: float = 0.0) -> None:
    """Store a folder of ann in which ben is a writer."""
    folder = Folder(ID, "sun", "genomes", OwnerKind.USER, "ann", "projects", "ann", 1.0, FolderState.READY)
    ann = Member(0, ID, SubjectKind.USER, "ann", "rw", MemberState.ACCEPTED, "ann", 1.0)
    store.create(folder, ann, Event(1.0, "ann", "created"), lambda _own: None)
    row = Member(0, ID, SubjectKind.USER, "ben", "rw", MemberState.ACCEPTED, "ann", 1.0, expires=expires)
    store.change(ID, lambda _folder, _members: Written(members=[row.replace(applied=applied, uid=7)]))


async def test_only_what_is_accepted_written_and_not_over_may_be_mounted(store: FolderStore) -> None:
    add(store)
    [one] = await access(store).mountable("ben")
    assert (one.name, one.role, one.source) == ("genomes", "rw", f"/srv/folders/{ID}/data")
    assert await access(store).mountable("cleo") == ()


@pytest.mark.parametrize("changes", [{"applied": ""}, {"expires": 999.0}])
async def test_what_is_not_written_yet_or_over_is_not_mounted(store: FolderStore, changes: dict[str, object]) -> None:
    add(store, **changes)  # type: ignore[arg-type]
    assert await access(store).mountable("ben") == ()


async def test_a_container_and_its_ranks_have_the_folders(store: FolderStore) -> None:
    add(store)
    request = Request("small", "base", folders=({"id": ID, "mode": "ro"},))
    site = await access(store).mounted(Site(Bubblewrap()), "ben", request)
    owner = Owner("ben", 1002, 1002, "/home/ben", "/bin/bash")
    session = "0f8fad5b-d9cb-469f-a165-70867728950e"
    container = container_of(session, owner, request, Image("base", "/images/base"), site, "/p")
    words = " ".join(site.runtime.render(container).argv)
    assert f"--ro-bind /srv/folders/{ID}/data /shared/genomes" in words
    rank = rank_part(container, request, site)["plan"]
    assert "/shared/genomes" in str(rank)
    assert site.bind_roots == (f"/srv/folders/{ID}/data",), "and by no link another folder"


async def test_a_folder_that_was_lost_between_choice_and_start_is_not_mounted(store: FolderStore) -> None:
    add(store)
    request = Request("small", "base", folders=({"id": ID, "mode": "rw"},))

    def revoke(_folder: Folder, members: object) -> Written:
        return Written(members=[one.replace(state=MemberState.REVOKED) for one in members])  # type: ignore[attr-defined]

    store.change(ID, revoke)
    with pytest.raises(Refused, match="is not shared with you any more"):
        await access(store).mounted(Site(Bubblewrap()), "ben", request)


async def test_the_choice_is_remembered_by_profile(store: FolderStore) -> None:
    folders = access(store)
    await folders.remember("ben", Request("small", "base", folders=({"id": ID, "mode": "rw"},)))
    await folders.remember("ben", Request("large", "base", folders=({"id": OTHER, "mode": "ro"},)))
    assert await folders.remembered("ben") == {"small": f"{ID}:rw", "large": f"{OTHER}:ro"}
    await folders.remember("ben", Request("small", "base"))
    assert await folders.remembered("ben") == {"large": f"{OTHER}:ro"}
