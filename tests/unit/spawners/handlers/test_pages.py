"""A GET shows and starts nothing, a POST starts what the form says or says why not, batchspawner's callback is gone."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jupyterhub.apihandlers
import jupyterhub.handlers
import pytest
from forged_hub import ForgedHub, SpawnerThatOnlyNotes, SpawnerWithOurForm, SpawnerWithoutForm, forged_hub
from jupyterhub.apihandlers.base import APIHandler
from tornado import web
from traitlets.config import Config

from carme_hub.domain.activity.efficiency import Asked, Used
from carme_hub.domain.activity.finished import REPORTER, FinishedJob
from carme_hub.errors import StoreError
from carme_hub.spawners.form.cost import RemainingBudget
from carme_hub.spawners.handlers import pages
from carme_hub.spawners.handlers.pages import HANDLERS, install_handlers, refuse_twice, templates_path

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class CallbackThatSetsAnything(APIHandler):
    """What batchspawner registers, as far as its address goes."""

    def post(self) -> None:
        self.set_status(201)

    get = put = patch = delete = post


@pytest.fixture(scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ForgedHub]:
    before = list(jupyterhub.handlers.default_handlers), list(jupyterhub.apihandlers.default_handlers)
    # As an import of batchspawner would, before us and after us.
    jupyterhub.apihandlers.default_handlers.append((r"/api/batchspawner", CallbackThatSetsAnything))
    install_handlers()
    install_handlers()
    jupyterhub.apihandlers.default_handlers.append((r"/api/batchspawner", CallbackThatSetsAnything))
    tmp = tmp_path_factory.mktemp("hub")
    try:
        async with forged_hub(
            str(tmp), template_paths=[templates_path()], allow_named_servers=True, implicit_spawn_seconds=1
        ) as hub:
            yield hub
    finally:
        jupyterhub.handlers.default_handlers[:] = before[0]
        jupyterhub.apihandlers.default_handlers[:] = before[1]


@pytest.fixture(autouse=True)
def nothing_started() -> None:
    SpawnerThatOnlyNotes.started.clear()
    SpawnerThatOnlyNotes.accounts = ("physics",)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", ["/hub/api/batchspawner", "/hub/api/batchspawner/", "/hub/api/batchspawner/x?y=1"])
async def test_batchspawners_callback_is_not_there(hub: ForgedHub, method: str, path: str) -> None:
    browser = await hub.browser()
    status, _, _ = await browser.ask(method, path, headers={"Authorization": "token whatever"})
    assert status == 404


@pytest.mark.parametrize(
    "order", ["batchspawner, carme_hub.spawners.handlers.pages", "carme_hub.spawners.handlers.pages, batchspawner"]
)
def test_the_real_batchspawner_is_shut_out_in_either_order(order: str, tmp_path: Path) -> None:
    program = f"""
import asyncio, re, sys, warnings
warnings.simplefilter("ignore")
import {order}
sys.modules["carme_hub.spawners.handlers.pages"].install_handlers()
import jupyterhub.apihandlers, {order}
from jupyterhub.app import JupyterHub
from traitlets.config import Config
config = Config()
config.JupyterHub.update(db_url="sqlite://", cookie_secret_file="cookie", authenticator_class="dummy", log_level=50)
app = JupyterHub(config=config)
asyncio.run(app.initialize([]))
first = next(h[1] for h in app.handlers if re.fullmatch(h[0], "/hub/api/batchspawner"))
print(first.__module__, first.__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "carme_hub.spawners.handlers.pages NotFoundHandler", done.stderr


def test_installing_twice_lists_every_handler_once() -> None:
    before = list(jupyterhub.handlers.default_handlers)
    try:
        install_handlers()
        install_handlers()
        assert jupyterhub.handlers.default_handlers[: len(HANDLERS)] == HANDLERS
        patterns = [h[0] for h in jupyterhub.handlers.default_handlers if tuple(h) in HANDLERS]
        assert len(patterns) == len(HANDLERS)
    finally:
        jupyterhub.handlers.default_handlers[:] = before


@pytest.mark.parametrize(
    "path",
    [
        "/hub/spawn",
        "/hub/spawn?opt-profile=gpu&opt-gpus=4",
        "/hub/spawn?profile=gpu&gpus=4",
        "/hub/spawn/ada?opt-profile=cpu",
        "/hub/spawn/ada/train?opt-profile=cpu",
        "/hub/spawn/ada/train?display_name=Training",
        "/hub/spawn?next=/hub/home",
        "/hub/user/ada/",
        "/hub/user/ada/lab",
        "/hub/user-redirect/lab?x=1",
        "/hub/spawn-pending/ada",
        "/hub/home",
        "/hub/",
        "/hub/api/users/ada/server",
        "/hub/api/users/ada/servers/train",
        "/hub/api/carme/availability",
    ],
)
async def test_no_get_starts_a_server_or_makes_one(hub: ForgedHub, path: str) -> None:
    browser = await hub.browser("ada")
    for _ in range(4):
        _, text, headers = await browser.get(path)
        if "Location" not in headers:
            break
        path = headers["Location"].removeprefix(hub.base)
    assert SpawnerThatOnlyNotes.started == []
    user = hub.app.users["ada"]
    assert set(user.orm_spawners) <= {""}, "a link made a named server"
    assert not user.spawners[""].orm_spawner.user_options
    assert "setTimeout" not in text, "a page leads on by itself"


async def test_a_link_fills_the_form_in_and_says_so(hub: ForgedHub) -> None:
    browser = await hub.browser("ada")
    status, text, _ = await browser.get("/hub/spawn?opt-profile=gpu&opt-gpus=3&opt-time_minutes=240")
    assert status == 200
    assert "Nothing has been started" in text
    assert '<option value="3" selected>3' in text.replace("\n", "").replace("  ", "")
    assert 'value="240" selected' in " ".join(text.split())


async def test_a_link_outside_the_limits_shows_the_limit(hub: ForgedHub) -> None:
    browser = await hub.browser("ada")
    _, text, _ = await browser.get("/hub/spawn?opt-profile=gpu&opt-gpus=5&opt-nodelist=n1")
    assert "“GPU” gives 1 to 4 GPUs; you asked for 5." in text
    assert "The option “nodelist” is not known." in text


async def test_a_links_values_cannot_become_markup(hub: ForgedHub) -> None:
    browser = await hub.browser("ada")
    _, text, _ = await browser.get(
        "/hub/spawn?opt-profile=gpu&opt-working_folder=%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
    )
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


async def test_start_posts_the_chosen_cards_values(hub: ForgedHub) -> None:
    browser = await hub.browser("bea")
    await browser.get("/hub/spawn")
    form = {"profile": "gpu", "gpu.gpus": "2", "gpu.gpu_type": "a100", "gpu.working_folder": "", "cpu.cpus": "99"}
    await browser.post("/hub/spawn/bea", form)
    assert SpawnerThatOnlyNotes.started == [("bea/", {"profile": "gpu", "gpus": 2, "gpu_type": "a100"})]


async def test_the_last_choice_is_remembered_while_it_is_valid(hub: ForgedHub) -> None:
    browser = await hub.browser("cleo")
    await browser.get("/hub/spawn")
    await browser.post("/hub/spawn", {"profile": "gpu", "gpu.gpus": "3"})
    _, text, _ = await browser.get("/hub/spawn")
    assert '<option value="3" selected>' in " ".join(text.split())
    hub.app.users["cleo"].spawners[""].orm_spawner.user_options = {"profile": "gpu", "gpus": 64}
    _, text, _ = await browser.get("/hub/spawn")
    assert "Please mend" not in text
    assert '<option value="1" selected>' in " ".join(text.split())


async def test_a_refused_post_keeps_what_was_typed_and_stores_nothing(hub: ForgedHub) -> None:
    browser = await hub.browser("dora")
    await browser.get("/hub/spawn")
    form = {"profile": "gpu", "gpu.cpus": "64", "gpu.working_folder": "../x"}
    status, text, _ = await browser.post("/hub/spawn/dora/late", form)
    assert status == 400
    assert "“GPU” gives 1 to 32 CPUs; you asked for 64." in text
    assert 'id="carme-gpu-cpus-error"' in text
    assert 'value="../x"' in text
    assert "Nothing was started" in text
    assert SpawnerThatOnlyNotes.started == []
    assert "late" not in hub.app.users["dora"].orm_spawners


async def test_a_refusal_while_starting_is_said_at_the_form_as_it_is(hub: ForgedHub) -> None:
    browser = await hub.browser("emmy")
    await browser.get("/hub/spawn")
    SpawnerThatOnlyNotes.refusal = "The partition gpu is closed today."
    status, text, _ = await browser.post("/hub/spawn", {"profile": "gpu", "gpu.gpus": "2"})
    assert status == 400
    assert "The partition gpu is closed today." in text
    assert "SpawnException" not in text
    assert '<option value="2" selected>' in " ".join(text.split())


async def test_a_post_without_its_token_starts_nothing(hub: ForgedHub) -> None:
    browser = await hub.browser("fay")
    status, _, _ = await browser.ask("POST", "/hub/spawn", data={"profile": "cpu"})
    assert status == 403
    assert SpawnerThatOnlyNotes.started == []


async def test_a_user_without_an_account_is_told_what_to_do(hub: ForgedHub) -> None:
    SpawnerThatOnlyNotes.accounts = ()
    browser = await hub.browser("gwen")
    _, text, _ = await browser.get("/hub/spawn")
    assert "You have no Slurm account yet" in text
    assert 'type="submit"' not in text


async def test_sentences_are_for_those_who_may_start(hub: ForgedHub) -> None:
    stranger = await hub.browser()
    assert (await stranger.get("/hub/api/carme/availability"))[0] == 403
    browser = await hub.browser("hedy")
    await hub.browser("ida")
    headers = {"X-XSRFToken": browser.xsrf}
    status, text, answer = await browser.get("/hub/api/carme/availability?profile=gpu&gpus=2", headers=headers)
    assert status == 200
    assert '"sentence": "6 of 8 a100 free; starts now"' in text
    assert answer["Cache-Control"] == "no-store"
    assert (await browser.get("/hub/api/carme/availability/ida", headers=headers))[0] in (403, 404)
    assert (await browser.get("/hub/api/carme/availability?gpus=1&gpus=2", headers=headers))[0] == 400


@pytest.mark.parametrize("name", ["form.js", "pending.js", "carme.css"])
async def test_static_files_are_served_and_nothing_beside_them(hub: ForgedHub, name: str) -> None:
    browser = await hub.browser()
    status, _, headers = await browser.get(f"/hub/carme/static/{name}?v=1")
    assert status == 200
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ("css" if name.endswith("css") else "javascript") in headers["Content-Type"]
    for path in ("../templates/spawn.html", "..%2ftemplates%2fspawn.html", "", "x.js"):
        assert (await browser.get(f"/hub/carme/static/{path}"))[0] == 404


async def test_another_spawner_class_is_not_started_by_a_get_either(tmp_path: Path) -> None:
    install_handlers()
    async with forged_hub(str(tmp_path), SpawnerWithoutForm, template_paths=[templates_path()]) as hub:
        browser = await hub.browser("ada")
        status, text, _ = await browser.get("/hub/spawn?opt-x=1")
        assert (status, SpawnerThatOnlyNotes.started) == (200, [])
        assert 'type="submit"' in text
        await browser.post("/hub/spawn", {"energy": "9"})
        assert SpawnerThatOnlyNotes.started == [("ada/", {"energy": ["9"]})]


async def test_a_form_that_the_site_has_set_is_shown_in_place_of_ours(tmp_path: Path) -> None:
    install_handlers()
    theirs = Config()
    theirs.SpawnerWithOurForm.options_form = "<input name='energy'>"
    for config, theirs_is_shown in ((Config(), False), (theirs, True)):
        async with forged_hub(
            str(tmp_path), SpawnerWithOurForm, config=config, template_paths=[templates_path()]
        ) as hub:
            browser = await hub.browser("ada")
            _, text, _ = await browser.get("/hub/spawn")
            assert ("name='energy'" in text) is theirs_is_shown
            assert ('value="gpu"' in text) is not theirs_is_shown


async def test_a_start_beside_a_pending_one_is_refused_and_not_a_fault_of_the_hub() -> None:
    class Starts:
        async def spawn_single_user(self, user: Any, server_name: str = "") -> None:
            raise RuntimeError("alice pending spawn")

    def user(pending: str | None) -> Any:
        return SimpleNamespace(spawners={"": SimpleNamespace(pending=pending)})

    refuse_twice(Starts)
    refuse_twice(Starts)
    with pytest.raises(web.HTTPError) as refused:
        await Starts().spawn_single_user(user("spawn"))
    assert refused.value.status_code == 400
    with pytest.raises(RuntimeError):
        await Starts().spawn_single_user(user(None))


# -- what is left of each account --------------------------------------------------------------------------------------


async def test_page_and_rest_say_what_is_left_of_each_account(hub: ForgedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cost(_self: Any, _request: Any) -> tuple[None, dict[str, RemainingBudget]]:
        return None, {"physics": RemainingBudget("12.5 h left", 45_000_000), "bio": RemainingBudget("no limit")}

    browser = await hub.browser("ada")
    monkeypatch.setattr(SpawnerThatOnlyNotes, "accounts", ("physics", "bio"))
    _, bare, _ = await browser.get("/hub/spawn")
    assert "12.5 h left" not in bare
    monkeypatch.setattr(SpawnerThatOnlyNotes, "cost", cost, raising=False)
    for address in ("/hub/spawn", "/hub/spawn?opt-profile=gpu&opt-gpus=77"):  # also beside a choice that cannot be
        _, page, _ = await browser.get(address)
        assert "physics: 12.5 h left" in page
        assert "bio: no limit" in page
    headers = {"Sec-Fetch-Mode": "cors", "X-XSRFToken": browser.xsrf}
    _, text, _ = await browser.get("/hub/api/carme/availability?profile=gpu", headers=headers)
    assert json.loads(text)["accounts"] == {
        "physics": {"left": 45_000_000, "said": "12.5 h left"},
        "bio": {"left": None, "said": "no limit"},
    }


async def test_while_the_ledger_does_not_answer_no_balance_is_claimed(
    hub: ForgedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cost(_self: Any, _request: Any) -> Any:
        raise StoreError("The database is away")

    browser = await hub.browser("ada")
    monkeypatch.setattr(SpawnerThatOnlyNotes, "accounts", ("physics", "bio"))
    monkeypatch.setattr(SpawnerThatOnlyNotes, "cost", cost, raising=False)
    status, page, _ = await browser.get("/hub/spawn")
    assert status == 200
    assert "physics: rest not known at the moment" in page
    assert "bio: rest not known at the moment" in page


# -- what was used last time -------------------------------------------------------------------------------------------


async def test_the_form_says_what_its_visitor_used_last_time_and_starts_nothing(
    hub: ForgedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = (1_795_000_000.0, 1_795_000_000.0, 1_795_007_200.0)
    used = Used(0, 0.0, 4, 0.5, 0.7, 500, 1.0)
    job = FinishedJob(1, "ada", "physics", "gpu", "COMPLETED", *times, Asked(4, 8, 65_536, 60), used)
    job = replace(job, source=REPORTER, image="base", gpu_type="a100", interactive=True)
    asked: list[str] = []

    async def finished_of(user: str, _now: float) -> list[FinishedJob]:
        asked.append(user)
        return [job]

    monkeypatch.setattr(pages, "finished_of", finished_of)
    browser = await hub.browser("ada")
    _, page, _ = await browser.get("/hub/spawn?opt-profile=gpu&opt-gpus=4&opt-time_minutes=60")
    assert "Last time with image base: None of 4 GPUs were used." in page
    link = re.search(r'href="(/hub/spawn\?opt-profile=cpu[^"]*)"', page)
    assert link is not None
    status, filled, _ = await browser.get(html.unescape(link[1]))
    assert status == 200
    assert "Nothing was started" not in filled
    assert "carme-last-use" not in filled, "it is filled in"
    assert (set(asked), SpawnerThatOnlyNotes.started) == ({"ada"}, [])
