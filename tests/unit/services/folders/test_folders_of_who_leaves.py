"""Who leaves is no member of others' folders any more; own folders are listed, and stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from forged_folders_service import PREFIX, running

from carme_hub.cli.hub_client import HubClient, HubRefused
from carme_hub.cli.users.sharing_parts import SharedFolders


async def test_memberships_end_and_own_folders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as site:
        for name in ("genomes", "whales"):
            await site.done("ann", "POST", "folders", {"name": name})
            await site.done("ann", "POST", f"folders/{name}/members", {"kind": "user", "subject": "ben"})
        await site.done("ben", "POST", "folders/genomes/answer", {"accepted": True})
        own = await site.done("ben", "POST", "folders", {"name": "own"})
        address = site.url.removesuffix(PREFIX)
        async with HubClient(address, "root", service="folders") as service:
            part = SharedFolders(service, "ben")
            items = await part.look()
            assert [item.what for item in items] == [
                "accepted in the folder genomes of ann",
                "owns the folder own",
                "pending in the folder whales of ann",
            ]
            going = [item for item in items if not item.kept]
            await part.end(going)
            await part.end(going)
            assert [(item.id, bool(item.kept)) for item in await part.look()] == [(own["id"], True)]
        assert [list(one["members"]) for one in site.disk.folders.values()] == [["2001"], ["2001"], ["2002"]]
        async with HubClient(address, "ann", service="folders") as service:
            with pytest.raises(HubRefused):
                await SharedFolders(service, "ben").look()
