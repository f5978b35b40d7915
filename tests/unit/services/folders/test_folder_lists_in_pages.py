"""Lists of folders have pages, as those of other services do; commands read all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from forged_folders_service import PREFIX, Site, running
from rig.forged_http import run

from carme_hub.cli.folders.command import DatasetsApp, ListApp
from carme_hub.cli.hub_client import HubClient
from carme_hub.cli.users.sharing_parts import SharedFolders
from carme_hub.services.folders.rest import models

NAMES = [f"set-{number:03}" for number in range(7)]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        for name in NAMES:
            await found.done("ann", "POST", "folders", {"name": name, "description": "Beetles"})
            said = {"dataset": True, "published": True, "licence": "CC0"}
            await found.done("ann", "PATCH", f"folders/{name}", said)
        yield found


@pytest.mark.parametrize(
    ("who", "path"), [("ann", "folders?"), ("root", "folders?all=true&"), ("ben", "datasets?words=beetles&")]
)
async def test_pages_have_all_folders_once_and_in_order(site: Site, who: str, path: str) -> None:
    seen, cursor, pages = [], "", 0
    while pages == 0 or cursor:
        page = await site.done(who, "GET", f"{path}limit=3&cursor={cursor}")
        seen += [one["name"] for one in page["folders"]]
        cursor, pages = page["next"], pages + 1
    assert (seen, pages) == (NAMES, 3)
    whole = await site.done(who, "GET", path)
    assert ([one["name"] for one in whole["folders"]], whole["next"]) == (NAMES, "")


async def test_a_page_goes_on_where_its_last_folder_was_deleted(site: Site) -> None:
    page = await site.done("ann", "GET", "folders?limit=3")
    await site.done("ann", "DELETE", f"folders/{page['next']}?name={page['next']}")
    after = await site.done("ann", "GET", f"folders?limit=3&cursor={page['next']}")
    assert [one["name"] for one in after["folders"]] == NAMES[3:6]


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "cursor=a&cursor=b", "page=2"])
async def test_what_is_no_page_is_refused(site: Site, query: str) -> None:
    status, answer = await site.rest("ann", "GET", f"folders?{query}")
    assert (status, bool(answer["message"])) == (400, True)


async def test_commands_and_the_end_of_a_user_read_all_pages(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_URL", site.url.removesuffix(PREFIX) + "/hub/api")
    real = models.ListQuery.model_validate.__func__  # type: ignore[attr-defined]

    def short(cls: type[models.ListQuery], values: dict[str, str]) -> models.ListQuery:
        assert values["limit"] == "200"
        return real(cls, {**values, "limit": "2"})  # type: ignore[no-any-return]

    for model in (models.ListQuery, models.DatasetsQuery):
        monkeypatch.setattr(model, "model_validate", classmethod(short))
    for who, app, argv in (("root", ListApp, ["--all"]), ("ben", DatasetsApp, ["beetles"])):
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", who)
        capsys.readouterr()
        assert await asyncio.to_thread(run, app, *argv, "--json") == 0
        assert [one["name"] for one in json.loads(capsys.readouterr().out)["folders"]] == NAMES
    async with HubClient(site.url.removesuffix(PREFIX), "root", service="folders") as service:
        assert len(await SharedFolders(service, "ann").look()) == len(NAMES)
