"""The hub's home page and the form show what the service's pages show, and never depend on it."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jupyterhub.handlers
import pytest
from forged_hub import ForgedHub, SpawnerThatOnlyNotes, forged_hub

from carme_hub.accounting.requests import Requests
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Person, QuotaRequest
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.quotas.application.notices import Notices
from carme_hub.spawners.handlers import notices
from carme_hub.spawners.handlers.pages import install_handlers, templates_path
from carme_hub.spawners.hub.admission import Admission
from carme_hub.store.engine import CarmeStore, make_engine

log = logging.getLogger("test")
POLICY = {
    "quotas": [
        {"id": "week", "user": "*", "gpu_time": 10, "window": "week"},
        {"id": "needs", "account": "*", "needs_grant": True},
    ]
}
PAGES = ("/hub/home", "/hub/spawn")


class Book:
    """ada and bea may charge physics, which ada owns."""

    known = True

    def accounts_of(self, user: str) -> tuple[str, ...]:
        return ("physics",) if user in ("ada", "bea") else ()

    def users_of(self, account: str) -> tuple[str, ...]:
        return ("ada", "bea") if account == "physics" else ()

    def coordinators_of(self, account: str) -> tuple[str, ...]:
        return ("ada",) if account == "physics" else ()

    def coordinates(self, user: str) -> tuple[str, ...]:
        return ("physics",) if user == "ada" else ()

    def accounts(self) -> tuple[str, ...]:
        return ("physics",)


class SpawnerThatKeepsGpuTime(SpawnerThatOnlyNotes):
    """Shares what our spawners share, as far as notices go."""

    part: ClassVar[Any] = None

    async def shared(self) -> Any:
        return self.part


def admission(engine: Any) -> Admission:
    watcher: Any = SimpleNamespace(latest=None)
    book: Any = Book()
    return Admission(CarmeQuotas(policy=POLICY), engine, "lab", book, watcher, log)


@pytest.fixture(scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ForgedHub]:
    before = list(jupyterhub.handlers.default_handlers)
    install_handlers()
    service = {"name": "quotas", "url": "http://127.0.0.1:1", "api_token": "t" * 32}
    role = {"name": "user", "scopes": ["self", "access:services!service=quotas"]}
    try:
        async with forged_hub(
            str(tmp_path_factory.mktemp("hub")),
            SpawnerThatKeepsGpuTime,
            template_paths=[templates_path()],
            services=[service],
            load_roles=[role, {"name": "helper", "scopes": ["admin:servers", "list:users"], "users": ["root"]}],
        ) as hub:
            yield hub
    finally:
        jupyterhub.handlers.default_handlers[:] = before


@pytest.fixture
async def kept(hub: ForgedHub, tmp_path: Path) -> AsyncIterator[Admission]:
    """A hub that keeps GPU time: ada's week is full, and her account has 1 of 10 hours left."""
    hub.app.tornado_application.settings.pop("carme_notices", None)
    engine = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    found = admission(engine)
    SpawnerThatKeepsGpuTime.part = SimpleNamespace(admission=found, associations=Book())
    await found.ledger.grant("physics", 11 * GPU_HOUR, key="g1", actor="root")
    assert (await found.ledger.admit("s1", Person("ada"), QuotaRequest("physics", Gpus("a100", 1), 10 * 3600))).granted
    yield found
    SpawnerThatKeepsGpuTime.part = None
    engine.dispose()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a database that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"postgresql+psycopg://carme@127.0.0.1:{server.getsockname()[1]}/carme"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page waits for its notices however slow the machine is; the tests of what it does not wait for say so."""
    monkeypatch.setattr(notices, "PAGE_WAIT", 60)


async def tell(kept: Admission) -> None:
    book: Any = Book()
    await Notices(CarmeQuotas(), kept.ledger, book, HubUsers(log), log).check_changes(())


def words(html: str) -> str:
    """Return what is between the page's notices, without tags."""
    found = re.search(r'<section class="carme-notices".*?</section>', html, re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", found.group(0)).split()) if found else ""


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_of_the_hub_shows_what_was_told_with_a_way_to_more(
    hub: ForgedHub, kept: Admission, path: str
) -> None:
    ada, bea = await hub.browser("ada"), await hub.browser("bea")
    assert words((await ada.get(path))[1]) == "", "nobody was told yet"
    await tell(kept)
    status, html, _ = await ada.get(path)
    said = words(html)
    assert status == 200
    assert "User ada has used or holds 100 % of the 10 GPU-hours per week: 10 are taken." in said
    assert "Account physics has used or holds 90 % of what it was granted" in said
    assert html.index("User ada") < html.index("Account physics"), "the gravest comes first"
    assert re.search(r'href="/services/quotas/">\s*My GPU time', html)
    assert "User ada" not in words((await bea.get(path))[1])
    assert "Account physics" in words((await bea.get(path))[1]), "she shares it"
    await kept.ledger.release("s1", "stopped early")
    assert words((await ada.get(path))[1]) == "", "it is so no more"


@pytest.mark.parametrize("path", PAGES)
async def test_peoples_own_words_cannot_become_markup_there(hub: ForgedHub, kept: Admission, path: str) -> None:
    await Requests(kept.ledger).ask("physics", "bea", GPU_HOUR, "<script>alert(1)</script>", key="r1")
    await tell(kept)
    _, html, _ = await (await hub.browser("ada")).get(path)
    assert "&lt;script&gt;alert(1)" in html
    assert "<script>alert" not in html
    assert 'href="/services/quotas/accounts/physics#requests">Answer it</a>' in html


async def test_a_page_of_the_hub_shows_a_few_and_says_how_many_more_there_are(hub: ForgedHub, kept: Admission) -> None:
    for number in range(4):
        await Requests(kept.ledger).ask("physics", "bea", GPU_HOUR, f"reason {number}", key=f"r{number}")
    await tell(kept)
    said = words((await (await hub.browser("ada")).get("/hub/home"))[1])
    assert "User ada" in said
    assert said.endswith("3 more in My GPU time")


async def test_who_starts_a_server_for_another_is_not_told_what_is_theirs(hub: ForgedHub, kept: Admission) -> None:
    await tell(kept)
    await hub.browser("ada")
    status, html, _ = await (await hub.browser("root")).get("/hub/spawn/ada")
    assert (status, words(html)) == (200, "")
    assert "for ada" in html


async def test_nothing_is_shown_where_gpu_time_is_not_kept(hub: ForgedHub, kept: Admission) -> None:
    await tell(kept)
    ada = await hub.browser("ada")
    for part in (SimpleNamespace(admission=None, associations=Book()), None):
        SpawnerThatKeepsGpuTime.part = part
        for path in PAGES:
            status, html, _ = await ada.get(path)
            assert (status, words(html)) == (200, "")


@pytest.mark.parametrize("path", PAGES)
async def test_a_database_that_is_silent_holds_up_neither_the_page_nor_anybody_else(
    hub: ForgedHub, kept: Admission, path: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PAGE_WAIT", 0.5)
    ada = await hub.browser("ada")
    begun, ended = [], []
    ask = notices.open_notices

    async def counted(*about: Any) -> Any:
        begun.append(about)
        try:
            return await ask(*about)
        finally:
            ended.append(about)

    monkeypatch.setattr(notices, "open_notices", counted)
    engine = make_engine(f"{silent}?connect_timeout=120")
    hub.app.tornado_application.settings.pop("carme_notices", None)
    SpawnerThatKeepsGpuTime.part = SimpleNamespace(admission=admission(engine), associations=Book())
    gaps = []

    async def beat() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - began)

    beating = asyncio.create_task(beat())
    status, html, _ = await ada.get(path)
    assert (len(begun), len(ended)) == (1, 0), "the page came while the database was still being asked"
    await asyncio.sleep(0.1)
    status_again, _, _ = await ada.get(path)
    beating.cancel()
    assert (status, status_again, words(html)) == (200, 200, "")
    assert (len(begun), len(ended)) == (1, 0), "it is not asked again and again"
    assert max(gaps) < 30, "the loop did not wait for the database"
    engine.dispose()


async def test_a_database_that_is_broken_breaks_no_page(hub: ForgedHub, kept: Admission, tmp_path: Path) -> None:
    ada = await hub.browser("ada")
    engine = make_engine(f"sqlite:///{tmp_path}/empty.sqlite")  # without a table
    SpawnerThatKeepsGpuTime.part = SimpleNamespace(admission=admission(engine), associations=Book())
    for path in PAGES:
        status, html, _ = await ada.get(path)
        assert (status, words(html)) == (200, "")
    engine.dispose()
