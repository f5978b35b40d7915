"""``carme-hub restore --from-slurm`` where a copy is older than what happened, and where others do harm."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from backup_parts import close, hub_rows, line, site
from jobs_of_sessions import (
    BEGAN,
    FIRST,
    REQUEST,
    SECOND,
    THIRD,
    TOKEN,
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

from carme_hub.cli.backup.hub_rows import HubRows, NoServer
from carme_hub.cli.backup.restore import RestoreApp
from carme_hub.cli.hub_config import hub_of, load_config
from carme_hub.domain.ledger.entries import Kind
from carme_hub.domain.sessions.recovered import ServerSecrets
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import SlurmUnreachable, StoreError
from carme_hub.slurm.settings import CarmeSlurm

__all__ = ["line", "site", "slurm"]
LOG = f"/root/.carme/sessions/{THIRD}/job.log"
PORT = b"[carme-singleuser] starting jupyterhub-singleuser on port 40003\n"


@pytest.fixture
def starting(site: CommandLine, slurm: SlurmWithTheseJobs) -> SlurmWithTheseJobs:
    """A copy that has a session as starting, whose job has ended since."""
    row = Session(THIRD, "lab", "root", "", REQUEST, SessionState.SUBMITTED, BEGAN - 901, job_id=91)
    add_row(site, row.replace(submitted=BEGAN - 900))
    slurm.usages = [used(91, f"carme-{THIRD}")]
    return slurm


def kinds(site: CommandLine) -> list[Kind]:
    return sorted((each.kind for each in site.statement()), key=lambda kind: kind.value)


def test_a_session_that_became_usable_after_the_copy_is_not_refunded(
    site: CommandLine, starting: SlurmWithTheseJobs
) -> None:
    starting.files[LOG] = PORT
    before = everything(site)
    assert find(site, "--dry-run")["charges"]["usable"] == ["91"]
    assert everything(site) == before
    found = find(site)["charges"]
    assert (found["written"], found["refunded"], found["unproved"]) == (1, 0, [])
    assert kinds(site) == [Kind.CHARGE]
    row = rows(site)[THIRD]
    assert (row.state, row.started, row.port, row.node) == (SessionState.RUNNING, BEGAN - 800, 40003, "node1")


def test_a_companion_was_usable_as_soon_as_its_job_ran(site: CommandLine, starting: SlurmWithTheseJobs) -> None:
    row = Session(SECOND, "lab", "root", "", REQUEST, SessionState.SUBMITTED, BEGAN - 901, parent=FIRST)
    add_row(site, row.replace(job_id=92, submitted=BEGAN - 900))
    starting.usages = [used(92, f"carme-{SECOND}")]
    found = find(site)["charges"]
    assert (found["usable"], found["refunded"], kinds(site)) == (["92"], 0, [Kind.CHARGE])


def test_a_start_that_failed_after_the_copy_is_refunded(site: CommandLine, starting: SlurmWithTheseJobs) -> None:
    starting.files[LOG] = b"[carme] The container image is missing\n"
    found = find(site)
    assert (found["charges"]["refunded"], found["charges"]["unproved"]) == (1, [])
    assert kinds(site) == [Kind.CHARGE, Kind.CORRECTION]


def test_where_a_log_cannot_be_read_it_is_said_that_a_refund_is_uncertain(
    site: CommandLine, starting: SlurmWithTheseJobs
) -> None:
    starting.unreadable = "the home is not mounted"
    found = find(site)
    assert found["charges"]["unproved"] == ["91"]
    assert any("whether they became usable is not known" in text and "(91)" in text for text in found["uncertain"])


def document(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def changed(text: bytes) -> bytes:
        values = json.loads(text)
        change(values)
        return json.dumps(values).encode()

    return changed


def certificate(change: Callable[[str], str]) -> Callable[[bytes], bytes]:
    return document(lambda d: d["files"]["tls.crt"].update(text=change(d["files"]["tls.crt"]["text"])))


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"[" * 1_000_000,
        lambda text: text.replace(b'"cpus":4', b'"cpus":' + b"9" * 5000),
        document(lambda d: d["singleuser"].update(nonce="\ud800")),
        document(lambda d: (d.pop("request"), d.update(activity={"cpus": float("inf"), "memory_limit": 1}))),
        document(lambda d: d["singleuser"]["environ"].update(JUPYTERHUB_SERVICE_PREFIX="http://[")),
        certificate(lambda text: f"{text[:40]}\ud800{text[40:]}"),
        certificate(lambda _: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
    ],
)
def test_what_a_user_has_written_keeps_no_session_of_others_from_being_found(
    site: CommandLine, slurm: SlurmWithTheseJobs, change: Callable[[bytes], bytes]
) -> None:
    slurm.session(FIRST, 1)
    slurm.session(SECOND, 2, "second")
    path = f"/root/.carme/sessions/{FIRST}/data.json"
    slurm.files[path] = change(slurm.files[path])
    assert acts(find(site)) == {FIRST: "left", SECOND: "found"}
    assert set(rows(site)) == {SECOND}


def test_a_certificate_with_a_text_before_it_is_read_as_the_certificate(
    site: CommandLine, slurm: SlurmWithTheseJobs
) -> None:
    slurm.session(FIRST, 1)
    path = f"/root/.carme/sessions/{FIRST}/data.json"
    find(site, "--dry-run")
    slurm.files[path] = certificate(lambda text: f"of alice\n{text}")(slurm.files[path])
    assert acts(find(site)) == {FIRST: "found"}
    assert len(rows(site)[FIRST].certificate) == 64


def test_what_no_hub_has_written_in_a_request_is_left_out(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    path = f"/root/.carme/sessions/{FIRST}/data.json"
    change = {"cpus": 10**30, "profile": "\x1b[31m", "qos": "\ud800", "image": "i" * 5000, "fields": {"a": "\ud800"}}
    slurm.files[path] = document(lambda d: d["request"].update(change))(slurm.files[path])
    found = find(site)
    assert acts(found) == {FIRST: "found"}
    assert any("is known from Slurm alone" in text for text in found["sessions"][0]["doubts"])
    asked = rows(site)[FIRST].request
    assert (asked.cpus, asked.profile, asked.qos, asked.image, asked.fields) == (1, "", "", "", {})


def test_what_is_half_made_is_not_written_with_the_next_session(site: CommandLine) -> None:
    hub = HubRows(hub_of(load_config(site.file)), quotas=True, reservations=False)
    eve = Session(FIRST, "lab", "eve", "", REQUEST, SessionState.RUNNING, BEGAN)
    wrong = ServerSecrets("", "/user/ada/", "https://hub/hub/api", TOKEN, "NONCE")
    with pytest.raises(NoServer):
        hub.put_server(eve, wrong, "node1", 40000)
    # Its token is found to be ada's when half of the rows are made.
    database = hub_rows(site)
    database.add(orm.OAuthClient(identifier="jupyterhub", secret="", redirect_uri="", description=""))
    database.commit()
    orm.User.find(database, "ada").new_api_token(TOKEN, scopes=["inherit"])
    close(database)
    with pytest.raises(NoServer):
        hub.put_server(eve, ServerSecrets("", "/user/eve/", "", TOKEN, "NONCE"), "node1", 40000)
    bob = Session(SECOND, "lab", "bob", "", REQUEST, SessionState.RUNNING, BEGAN)
    assert hub.put_server(bob, ServerSecrets("", "/user/bob/", "", TOKEN[::-1], "NONCE"), "node1", 40000)
    hub.close()
    database = hub_rows(site)
    assert {each.name for each in database.query(orm.User)} == {"ada", "bob"}
    assert {each.identifier for each in database.query(orm.OAuthClient)} == {"jupyterhub", "jupyterhub-user-bob"}
    close(database)


def test_a_database_of_jupyterhub_that_fails_keeps_the_next_session_from_nothing(
    site: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = HubRows(hub_of(load_config(site.file)), quotas=True, reservations=False)
    bob = Session(SECOND, "lab", "bob", "", REQUEST, SessionState.RUNNING, BEGAN)
    server = ServerSecrets("", "/user/bob/", "", TOKEN, "NONCE")
    with monkeypatch.context() as patch:
        patch.setattr(HubRows, "_new_token", lambda self, *_: self._db.add(orm.User(name="ada")) or self._db.flush())
        with pytest.raises(StoreError, match="UNIQUE") as failed:
            hub.put_server(bob, server, "node1", 40000)
    assert TOKEN not in str(failed.value)
    assert hub.put_server(bob, server, "node1", 40000)
    hub.close()


@pytest.mark.parametrize(("since", "code"), [("yesterday", 2), ("2999-01-01", 2)])
def test_a_day_that_is_none_is_refused_before_anything_is_written(
    site: CommandLine, slurm: SlurmWithTheseJobs, since: str, code: int
) -> None:
    slurm.session(FIRST, 1)
    before = everything(site)
    found, out, err = site.run(RestoreApp, "--from-slurm", "--since", since)
    assert (found, out, since in err) == (code, "", True)
    assert everything(site) == before


def test_a_failure_to_charge_leaves_a_report_of_the_sessions(
    site: CommandLine, slurm: SlurmWithTheseJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StoreError("the ledger is damaged")

    slurm.session(FIRST, 1)
    monkeypatch.setattr("carme_hub.cli.backup.charges.open_ledger", fail)
    code, out, _ = site.run(RestoreApp, "--from-slurm", "--json")
    found = json.loads(out)
    assert (code, acts(found), found["problem"]) == (1, {FIRST: "found"}, "the ledger is damaged")


def test_where_slurms_reservations_are_not_read_lost_bookings_are_not_known(
    site: CommandLine, slurm: SlurmWithTheseJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        async def show(self) -> None:
            raise SlurmUnreachable("scontrol: no answer")

    site.file.write_text(site.file.read_text() + "c.CarmeReservations.enabled = True\n")
    monkeypatch.setattr(CarmeSlurm, "reservations", lambda _self: Silent())
    code, out, _ = site.run(RestoreApp, "--from-slurm")
    assert code == 1
    assert "whether bookings are lost is not known" in out


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change owners")
def test_a_database_stays_whose_it_is_also_where_its_folder_is_anothers(
    site: CommandLine, slurm: SlurmWithTheseJobs
) -> None:
    slurm.session(FIRST, 1)
    hubs = site.folder / "state" / "jupyterhub.sqlite"
    shutil.chown(site.database, "daemon", "daemon")
    site.database.chmod(0o600)
    hubs.unlink()
    shutil.chown(site.folder / "state", "bin", "bin")
    find(site)
    assert (site.database.owner(), hubs.owner()) == ("daemon", "bin")


def test_a_dry_run_makes_nothing_of_an_empty_database(site: CommandLine, slurm: SlurmWithTheseJobs) -> None:
    slurm.session(FIRST, 1)
    for each in site.database.parent.glob("carme-hub.sqlite*"):
        each.unlink()
    site.database.touch(0o600)
    code, _, err = site.run(RestoreApp, "--from-slurm", "--dry-run")
    assert (code, "one is missing" in err) == (1, True)
    assert site.database.stat().st_size == 0
