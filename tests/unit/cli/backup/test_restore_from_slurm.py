"""``carme-hub restore --from-slurm`` with a forged Slurm and session folders: what is found, written and doubted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from backup_parts import close, hub_rows, line, site
from jobs_of_sessions import (
    BEGAN,
    FIRST,
    IMAGE,
    REQUEST,
    ROOT,
    SECOND,
    THIRD,
    SlurmWithTheseJobs,
    acts,
    add_row,
    everything,
    find,
    rows,
    slurm,
    used,
)
from jupyterhub import orm
from rig.command_line import CommandLine

from carme_hub.cli.backup.charges import people_since
from carme_hub.cli.backup.restore import RestoreApp
from carme_hub.containers.registry import runtime
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.usage import UsageReader
from carme_hub.spawners.companions.script import render_companion
from carme_hub.spawners.hub.tls import certificate_of
from carme_hub.spawners.job_script import Site
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore

__all__ = ["line", "site", "slurm"]


def test_a_session_that_no_database_knows_gets_all_its_rows(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    server = slurm.session(FIRST, 1, "second")
    found = find(site)
    assert acts(found) == {FIRST: "found"}
    assert found["sessions"][0]["doubts"] == []
    row = rows(site)[FIRST]
    assert row.request == replace(REQUEST, time_limit=60)
    assert (row.user, row.server_name, row.state, row.port, row.node) == (
        *("root", "second", SessionState.RUNNING, 40001, "node1"),
    )
    assert row.certificate == certificate_of(server.tls)
    hub = hub_rows(site)
    (spawner,) = hub.query(orm.Spawner)
    token = orm.APIToken.find(hub, server.environ["JUPYTERHUB_API_TOKEN"])
    assert token is not None
    assert (token.id, token.user.name) == (row.token_id, "root")
    assert token.created.timestamp() <= row.created, "it is revoked with its session"
    assert {"users:activity!user", "access:servers!server=root/second"} <= set(token.scopes)
    assert spawner.state == {"session": FIRST}
    assert (spawner.server.base_url, spawner.server.port) == ("/user/root/second/", 40001)
    assert spawner.oauth_client.identifier == "jupyterhub-user-root-second"
    assert spawner.oauth_client.redirect_uri == "/user/root/second/oauth_callback"
    close(hub)
    before = everything(site)
    assert acts(find(site)) == {FIRST: "known"}
    assert everything(site) == before, "a second run changes nothing"


def test_a_dry_run_writes_nothing(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    slurm.usages = [used(90, "train")]
    before = everything(site)
    found = find(site, "--dry-run")
    assert (acts(found), found["charges"]["missing"]) == ({FIRST: "found"}, 1)
    assert everything(site) == before


def test_a_server_that_answered_after_the_copy_is_completed(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    find(site)
    early = rows(site)[FIRST].replace(
        state=SessionState.INTENDED, port=0, node="", started=0.0, job_id=0, submitted=0.0
    )
    engine = CarmeStore(url=site.url).open()
    SessionStore(engine).save(early)
    engine.dispose()
    assert acts(find(site)) == {FIRST: "completed"}
    row = rows(site)[FIRST]
    assert (row.state, row.port, row.node, row.job_id) == (SessionState.RUNNING, 40001, "node1", 1)
    assert acts(find(site)) == {FIRST: "known"}


def test_one_that_is_killed_between_the_databases_is_run_again(
    site: CommandLine, slurm: SlurmWithTheseJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    slurm.session(FIRST, 1)
    with monkeypatch.context() as patch:
        patch.setattr(SessionStore, "add", die)
        with pytest.raises(Killed):
            RestoreApp(config_path=str(site.file), from_slurm=True).start()
    assert rows(site) == {}
    assert acts(find(site)) == {FIRST: "found"}
    hub = hub_rows(site)
    assert [each.id for each in hub.query(orm.APIToken)] == [rows(site)[FIRST].token_id]
    assert hub.query(orm.Server).count() == 1
    close(hub)


def test_where_jupyterhubs_database_alone_is_lost_the_row_stays(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    find(site)
    before = rows(site)[FIRST]
    for each in (site.folder / "state").glob("jupyterhub.sqlite*"):
        each.unlink()
    found = find(site)
    assert (acts(found), found["new_hub_database"]) == ({FIRST: "completed"}, True)
    assert rows(site)[FIRST].replace(token_id=before.token_id) == before
    assert any("everybody logs in again" in text for text in found["uncertain"])
    assert (site.folder / "state" / "jupyterhub.sqlite").stat().st_mode & 0o777 == 0o600


def test_what_is_not_this_hubs_is_left_and_named(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1, whose="bob")
    slurm.session(SECOND, 2)
    slurm.add(THIRD, 3)  # without a session folder
    slurm.jobs[1] = replace(slurm.jobs[1], user="nobody-here")
    found = find(site)
    assert acts(found) == {FIRST: "left", SECOND: "left", THIRD: "left"}
    why = {each["session"]: each["why"] for each in found["sessions"]}
    assert "issued for somebody else" in why[FIRST]
    assert "no user nobody-here" in why[SECOND]
    assert "no such file" in why[THIRD]
    assert rows(site) == {}
    assert sum("scancel" in text for text in found["uncertain"]) == 3


def test_a_token_of_somebody_else_is_not_taken_over(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    server = slurm.session(FIRST, 1)
    hub = hub_rows(site)
    hub.add(orm.OAuthClient(identifier="jupyterhub", secret="", redirect_uri="", description=""))
    hub.commit()
    ada = orm.User.find(hub, "ada")
    ada.new_api_token(server.environ["JUPYTERHUB_API_TOKEN"], scopes=["inherit"])
    close(hub)
    found = find(site)
    assert acts(found) == {FIRST: "left"}
    assert "somebody else" in found["sessions"][0]["why"]
    assert rows(site) == {}


def test_of_two_sessions_of_one_server_the_newer_has_it(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    slurm.session(SECOND, 2)
    found = find(site)
    assert acts(found) == {FIRST: "found", SECOND: "found"}
    assert set(rows(site)) == {FIRST, SECOND}
    hub = hub_rows(site)
    assert [each.state for each in hub.query(orm.Spawner)] == [{"session": SECOND}]
    close(hub)
    before = everything(site)
    assert acts(find(site)) == {FIRST: "known", SECOND: "known"}
    assert everything(site) == before


def test_companions_are_found_again_without_a_server(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    companion = render_companion(SECOND, FIRST, ROOT, REQUEST, IMAGE, Site(runtime("bubblewrap")))
    slurm.files[f"/root/.carme/sessions/{SECOND}/data.json"] = companion.data
    slurm.add(SECOND, 2)
    assert acts(find(site)) == {FIRST: "found", SECOND: "found"}
    assert (rows(site)[SECOND].parent, rows(site)[SECOND].token_id) == (FIRST, 0)
    assert acts(find(site)) == {FIRST: "known", SECOND: "known"}


def test_a_companion_without_its_session_is_left_to_run(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    """With a row and no session the hub would cancel it at its start."""
    for id, parent in ((SECOND, FIRST), (THIRD, "1" * 8 + FIRST[8:])):
        companion = render_companion(id, parent, ROOT, REQUEST, IMAGE, Site(runtime("bubblewrap")))
        slurm.files[f"/root/.carme/sessions/{id}/data.json"] = companion.data
        slurm.add(id, int(id[-1]))
    slurm.add(FIRST, 1)  # its session folder is gone
    add_row(site, Session("1" * 8 + FIRST[8:], "lab", "ada", "", REQUEST, SessionState.RUNNING, BEGAN))
    found = find(site)
    assert acts(found) == {FIRST: "left", SECOND: "left", THIRD: "left"}
    why = {each["session"]: each["why"] for each in found["sessions"]}
    assert "is not found" in why[SECOND]
    assert "somebody else" in why[THIRD]
    assert {each.user for each in rows(site).values()} == {"ada"}


def test_an_ended_session_is_not_opened_again(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    add_row(site, Session(FIRST, "lab", "root", "", REQUEST, SessionState.ENDED, BEGAN, ended=BEGAN + 5))
    found = find(site)
    assert acts(found) == {FIRST: "left"}
    assert "the hub cancels the job" in found["sessions"][0]["why"]
    assert rows(site) == {}


def test_a_slurm_that_is_silent_proves_nothing(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    slurm.silent = True
    before = everything(site)
    code, _, err = site.run(RestoreApp, "--from-slurm")
    assert (code, "no answer" in err) == (2, True)
    assert everything(site) == before


def test_sessions_are_written_also_where_accounting_is_silent(
    site: CommandLine, slurm: SlurmWithTheseJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def usage(_self: UsageReader, _start: float, *_: Any) -> tuple[Usage, ...]:
        raise SlurmUnreachable("sacct: no answer")

    slurm.session(FIRST, 1)
    monkeypatch.setattr(UsageReader, "usage", usage)
    code, out, _ = site.run(RestoreApp, "--from-slurm")
    assert (code, "the quotas service does it once that is mended" in out) == (1, True)
    assert set(rows(site)) == {FIRST}


def test_the_ledger_gets_what_accounting_has_once_and_says_what_is_uncertain(
    site: CommandLine, slurm: SlurmWithTheseJobs
) -> None:
    site.grant("physics", "2h", "--reason", "before")
    slurm.usages = [used(90, "train"), used(91, f"carme-{THIRD}")]
    found = find(site)["charges"]
    assert (found["missing"], found["written"], found["difference"]) == (2, 2, 0)
    assert (found["seconds"], found["amount"]) == (2 * 1200, 2 * 1_200_000)
    assert (found["without_session"], found["at_todays_price"]) == (["91"], ["90", "91"])
    assert [each["action"] for each in found["people"]] == ["grants"], "the ledger knew of no settlement"
    again = find(site)["charges"]
    assert (again["missing"], again["written"], again["people"]) == (0, 0, [])
    assert [each.kind.value for each in site.statement()].count("charge") == 2
    code, out, _ = site.run(RestoreApp, "--from-slurm")
    assert (code, "lacked 0 jobs" in out) == (0, True)


def test_a_new_database_says_what_is_lost_with_the_old_one(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    for each in (site.folder / "state").glob("carme-hub.sqlite*"):
        each.unlink()
    code, _, err = site.run(RestoreApp, "--from-slurm", "--dry-run")
    assert (code, "restore a copy" in err) == (1, True)
    code, out, _ = site.run(RestoreApp, "--from-slurm")
    assert code == 0
    for text in ("1 not known: their rows are written again", "carme-hub quotas grant", "bookings"):
        assert text in out
    assert site.database.stat().st_mode & 0o777 == 0o600


def test_changes_by_people_are_read_from_the_audit_file(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    gpu_time = "urn:carme-hub:gpu-time-written"
    events = [
        {"__timestamp__": "2026-01-01T00:00:00Z", "__schema__": gpu_time, "action": "grants", "actor": "ada"},
        {"__timestamp__": "2026-01-03T00:00:00Z", "__schema__": "urn:carme-hub:booking-written", "action": "book"},
        {"__timestamp__": "2026-01-03T00:00:00Z", "__schema__": gpu_time, "action": "transfers", "actor": "bob"},
    ]
    file.write_text("\n".join([*map(json.dumps, events), "half a li"]))
    since = 1767312000.0  # 2026-01-02
    assert people_since(str(file), since) == [{"at": "2026-01-03T00:00:00", "action": "transfers", "actor": "bob"}]
    assert people_since(str(tmp_path / "none"), since) == people_since("", since) == []
