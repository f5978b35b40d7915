"""REST of jobs is for the user's own tokens with its scopes, and for nobody else: not even an administrator."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import jupyterhub.handlers
import pytest
from forged_hub import Browser, ForgedHub, forged_hub
from forged_jobs import SCRIPT
from test_home_sessions import SpawnerWithSession, alice, part
from test_jobs_pages import PATH, slurm
from traitlets.config import Config

from carme_hub.config import JOB_SCOPES
from carme_hub.errors import SlurmUnreachable
from carme_hub.spawners.handlers.pages import install_handlers, templates_path

__all__ = ["alice", "part", "slurm"]
API = "/hub/api/carme/users/alice/jobs"


@pytest.fixture(scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ForgedHub]:
    before = list(jupyterhub.handlers.default_handlers)
    install_handlers()
    config = Config()
    config.JupyterHub.custom_scopes = JOB_SCOPES
    config.JupyterHub.extra_user_scopes = {"custom:carme:jobs"}
    config.Authenticator.admin_users = {"root-of-hub"}
    try:
        folder = str(tmp_path_factory.mktemp("hub"))
        async with forged_hub(folder, SpawnerWithSession, config, template_paths=[templates_path()]) as found:
            yield found
    finally:
        jupyterhub.handlers.default_handlers[:] = before


class Program:
    """A program with one token."""

    def __init__(self, browser: Browser, token: str) -> None:
        self.browser, self.token = browser, token

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        more = {"data": json.dumps(body) if not isinstance(body, str) else body} if body is not None else {}
        found = {
            "Authorization": f"token {self.token}",
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        status, text, _ = await self.browser.ask(method, path, headers=found, **more)
        return status, json.loads(text) if text.startswith("{") else text


async def program(hub: ForgedHub, user: str, *scopes: str) -> Program:
    await hub.browser(user)
    token = hub.app.users[user].new_api_token(scopes=list(scopes) or None)
    hub.app.db.commit()
    return Program(await hub.browser(), token)


async def test_a_program_lists_and_acts_on_its_users_jobs(hub: ForgedHub, alice: Browser, slurm: Any) -> None:
    own = await program(hub, "alice", "custom:carme:jobs")
    status, found = await own.ask("GET", API)
    assert status == 200
    assert [(job["job"], job["name"], job["acts"]) for job in found["jobs"]] == [
        ("7", "sweep.sh", ["cancel", "hold", "requeue"]),
        ("6", "later.sh", ["cancel", "hold"]),
        ("5", "train.sh", ["cancel", "requeue"]),
    ]
    status, found = await own.ask("POST", f"{API}/acts", {"act": "hold", "jobs": ["6", "9", "7_[3-4]"]})
    assert status == 200
    assert [(each["job"], each["done"]) for each in found["results"]] == [("6", True), ("9", False), ("7_[3-4]", True)]
    assert slurm.done == [("alice", "hold", "6"), ("alice", "hold", "7_[3-4]")]
    _, found = await own.ask("POST", f"{API}/acts", {"act": "limit", "jobs": ["5"], "minutes": 10})
    assert found["results"][0]["said"] == "has a limit of 10 minutes."
    _, found = await own.ask("GET", f"{API}/ended")
    assert [job["job"] for job in found["ended"]] == ["20"]
    _, found = await own.ask("POST", f"{API}/acts", {"act": "cancel", "jobs": ["12"]})
    assert "DELETE its server" in found["results"][0]["said"]


async def test_output_and_submitting_again(hub: ForgedHub, alice: Browser, slurm: Any) -> None:
    own = await program(hub, "alice", "custom:carme:jobs")
    status, found = await own.ask("GET", f"{API}/5/output")
    assert (status, found["path"], found["size"]) == (200, PATH, len(slurm.files[PATH]))
    assert found["text"] == slurm.files[PATH].decode()
    _, found = await own.ask("GET", f"{API}/5/output?offset=0&length=3")
    assert (found["text"], found["end"]) == ("<b>", 3)
    _, found = await own.ask("GET", f"{API}/5/output?find=step%202")
    assert found["count"] == 1
    assert (await own.ask("GET", f"{API}/9/output"))[0] == 404
    _, shown = await own.ask("GET", f"{API}/5/again")
    assert shown["script"] == SCRIPT
    for _ in range(2):
        status, found = await own.ask("POST", f"{API}/5/again", Idempotency_Key="k1")
        assert (status, found) == (201, {"job": "101"})
    status, _ = await own.ask("POST", f"{API}/7_%5B2-3%5D/again", {"tasks": "2-3"})
    assert status == 201
    assert [job.options.get("array") for job in slurm.submitted] == [None, "2-3"]
    status, found = await own.ask("POST", f"{API}/6/again", Idempotency_Key="k1")
    assert (status, found["error"]) == (422, "key-used")
    assert (await own.ask("GET", f"{API}/20/again"))[1]["error"] == "cannot-submit-again"


async def test_nobody_else_is_let_in(hub: ForgedHub, alice: Browser, slurm: Any) -> None:
    reader = await program(hub, "alice", "custom:carme:jobs:read")
    others = [
        await program(hub, "alice", "read:users:name!user"),
        await program(hub, "bob", "custom:carme:jobs"),
        await program(hub, "root-of-hub"),
    ]
    assert (await reader.ask("GET", API))[0] == 200
    calls = [
        ("GET", ""),
        ("GET", "/ended"),
        ("POST", "/acts"),
        ("GET", "/5/output"),
        ("GET", "/5/again"),
        ("POST", "/5/again"),
    ]
    for method, path in calls:
        body = {"act": "cancel", "jobs": ["5"]} if method == "POST" else None
        if method == "POST":
            assert (await reader.ask(method, API + path, body))[0] == 403
        for each in others:
            assert (await each.ask(method, API + path, body))[0] == 403, (method, path)
        assert (await Program(await hub.browser(), "wrong").ask(method, API + path, body))[0] == 403
    assert slurm.done == []
    assert slurm.submitted == []


@pytest.mark.parametrize(
    "body",
    [
        "x", [], {}, {"act": "x", "jobs": ["5"]}, {"act": "hold", "jobs": []}, {"act": "hold", "jobs": [5]},
        {"act": "hold", "jobs": ["5;"]}, {"act": "hold", "jobs": ["5"], "minutes": 5}, {"act": "limit", "jobs": ["5"]},
        {"act": "limit", "jobs": ["5"], "minutes": True}, {"act": "hold", "jobs": ["5"], "user": "bob"},
    ],
)  # fmt: skip
async def test_bad_requests_change_nothing(hub: ForgedHub, alice: Browser, slurm: Any, body: Any) -> None:
    own = await program(hub, "alice", "custom:carme:jobs")
    assert (await own.ask("POST", f"{API}/acts", body))[0] == 400
    assert slurm.done == []


async def test_silence_and_wrong_numbers(hub: ForgedHub, alice: Browser, slurm: Any) -> None:
    own = await program(hub, "alice", "custom:carme:jobs")
    for query in ("offset=x", "length=0", f"length={10**7}", "stream=x", "find=" + "x" * 201):
        assert (await own.ask("GET", f"{API}/5/output?{query}"))[0] == 400, query
    slurm.silent = True
    assert (await own.ask("POST", f"{API}/acts", {"act": "hold", "jobs": ["6"]}))[0] == 503
    assert (await own.ask("GET", f"{API}/ended"))[0] == 503
    slurm.silent = False
    slurm.errors["submit"] = SlurmUnreachable("timed out")
    status, found = await own.ask("POST", f"{API}/5/again")
    assert status == 503
    assert "may or may not be submitted" in found["message"]
