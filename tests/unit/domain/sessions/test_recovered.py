"""A session's row is made again from its job and its data document, and says what of it is not known."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from carme_hub.containers.registry import runtime
from carme_hub.containers.runtime import Image
from carme_hub.domain.cluster.jobs import Job, JobSpec, Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.recovered import NotADocument, port_of, read_document, recovered, session_of
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.spawners.companions.script import render_batch_job, render_companion
from carme_hub.spawners.job_script import Owner, Reporting, Server, Site, render

ID, PARENT = "9f1c7b52-1111-4222-8333-444455556666", "1f1c7b52-1111-4222-8333-444455556666"
ALICE, IMAGE = Owner("alice", 1001, 1001, "/home/alice"), Image("default", "/srv/images/default", "dir")
ENVIRON = {
    "JUPYTERHUB_API_TOKEN": "0123456789abcdef" * 2,
    "JUPYTERHUB_SERVER_NAME": "second",
    "JUPYTERHUB_SERVICE_PREFIX": "/user/alice/second/",
    "JUPYTERHUB_API_URL": "https://hub:8081/hub/api",
}
SERVER = Server(("jupyterhub-singleuser",), ENVIRON, "https://hub/callback", "NONCE", tls={"certfile": "PEM"})
REQUEST = Request(
    *("a100", "default", Gpus("a100", 2)),
    **{"cpus": 4, "memory_mib": 8192, "time_limit": 90, "account": "physics", "partition": "gpu", "qos": "long"},
    working_folder="work",
    nice=60,
    fields={"framework": "torch"},
)
REPORTING = Reporting("https://hub/services/activity/", lambda session: f"TOKEN-{session}")
JOB = Job(
    *(17, f"carme-{ID}", "alice", "RUNNING", Phase.ACTIVE),
    **{"nodes": ("node1",), "partition": "gpu", "account": "physics", "submitted": 1000.0, "start": 1010.0},
    time_limit=90,
    gpus=Gpus("a100", 2),
)


def spec(name: str = "bubblewrap", request: Request = REQUEST) -> JobSpec:
    return render(ID, ALICE, request, IMAGE, SERVER, Site(runtime(name), reporting=REPORTING))


def found_again(text: bytes, job: Job = JOB, port: int = 40123, profile: str = "") -> tuple[Session, tuple[str, ...]]:
    document = read_document(text, ID)
    return recovered(job, document, "lab", port=port, certificate="f" * 64, profile=profile, now=2000.0)


def without_request(text: bytes) -> dict[str, Any]:
    """Return a document as earlier releases wrote it."""
    document = dict(json.loads(text))
    del document["request"]
    document.pop("parent", None)
    return document


def test_a_session_that_runs_is_made_again_completely() -> None:
    session, doubts = found_again(spec().data)
    assert doubts == ()
    assert session == Session(
        *(ID, "lab", "alice", "second", REQUEST, SessionState.RUNNING, 1000.0),
        nonce_hash=hashlib.sha256(b"NONCE").hexdigest(),
        **{"port": 40123, "node": "node1", "job_id": 17, "submitted": 1000.0, "started": 1010.0},
        certificate="f" * 64,
    )
    assert ENVIRON["JUPYTERHUB_API_TOKEN"] not in repr(read_document(spec().data, ID))


def test_one_that_waits_is_still_to_report_its_server() -> None:
    waiting = replace(JOB, state="PENDING", phase=Phase.WAITING, nodes=(), start=3000.0)
    session, doubts = found_again(spec().data, waiting, port=0)
    assert (session.state, session.port, session.node, session.started) == (SessionState.SUBMITTED, 0, "", 0.0)
    assert session.nonce_hash == hashlib.sha256(b"NONCE").hexdigest(), "its callback is accepted"
    assert doubts == ()


def test_a_server_without_a_known_port_is_not_said_to_run() -> None:
    session, (doubt,) = found_again(spec().data, port=0)
    assert session.state is SessionState.SUBMITTED
    assert "names no port" in doubt


@pytest.mark.parametrize("name", ["apptainer", "bubblewrap", "charliecloud", "enroot", "podman"])
def test_of_a_document_of_an_earlier_release_image_and_size_are_known(name: str) -> None:
    text = json.dumps(without_request(spec(name).data)).encode()
    session, doubts = found_again(text, profile="a100")
    assert session.request == replace(REQUEST, qos="", working_folder="", nice=0, fields={})
    assert doubts == ("what it asked for is known from Slurm alone: QOS, fields are not",)
    _, (first, _) = found_again(text)
    assert first == "its profile is not known"


def test_what_slurm_knows_is_never_taken_from_the_document() -> None:
    document = json.loads(spec().data)
    document["user"] = "root"
    document["request"].update(account="others", gpus={"type": "h100", "count": 64}, time_limit=99999, nodes=7)
    session, _ = found_again(json.dumps(document).encode())
    asked = session.request
    assert (session.user, asked.account, asked.gpus, asked.time_limit, asked.nodes) == (
        *("alice", "physics", Gpus("a100", 2), 90, 1),
    )


@pytest.mark.parametrize("earlier", [False, True])
def test_companions_and_batch_jobs_are_found_again_without_a_server(earlier: bool) -> None:
    site, job = Site(runtime("bubblewrap")), replace(JOB, nodes=("node1", "node2"))
    request = replace(REQUEST, nodes=2, purpose="ranks")
    companion = render_companion(ID, PARENT, ALICE, request, IMAGE, site).data
    batch = render_batch_job(
        *(ID, ALICE, replace(request, batch="run-7", python="/opt/venv/bin/python"), IMAGE, site, {}, PARENT)
    ).data
    if earlier:
        companion, batch = (json.dumps(without_request(each)).encode() for each in (companion, batch))
    one, _ = found_again(companion, job, port=0)
    assert (one.parent, one.server_name, one.state, one.node) == (PARENT, "", SessionState.RUNNING, "node1")
    assert (one.request.nodes, one.request.batch, one.nonce_hash) == (2, "", "")
    other, doubts = found_again(batch, job, port=0)
    assert (other.request.batch, other.state) == ("run-7", SessionState.RUNNING)
    assert other.parent == (ID if earlier else PARENT)
    assert any("submitted is not known" in doubt for doubt in doubts) == earlier


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(session=PARENT),
        lambda d: d["singleuser"]["environ"].update(JUPYTERHUB_SERVER_NAME="../admin"),
        lambda d: d["singleuser"]["environ"].update(JUPYTERHUB_API_TOKEN="short"),
        lambda d: d["singleuser"]["environ"].update(JUPYTERHUB_API_TOKEN="0123456789\nabcdef"),
        lambda d: d["singleuser"].update(nonce=17),
        lambda d: d["singleuser"].pop("environ"),
        lambda d: d.update(files=[]),
        lambda d: d.update(plan=None),
    ],
)
def test_a_document_that_its_user_has_changed_is_refused_and_not_quoted(change: Any) -> None:
    document = json.loads(spec().data)
    change(document)
    with pytest.raises(NotADocument) as refused:
        found_again(json.dumps(document).encode())
    assert ENVIRON["JUPYTERHUB_API_TOKEN"] not in str(refused.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff\xfe", b"7", b'{"session": 1}'])
def test_what_is_no_document_is_refused(text: bytes) -> None:
    with pytest.raises(NotADocument):
        read_document(text, ID)


def test_the_newest_line_with_a_port_counts() -> None:
    line = "[carme-singleuser] starting jupyterhub-singleuser on port "
    assert port_of([f"{line}40001", f"{line}40002", "[carme-singleuser] starting x on port 80"]) == 40002
    assert port_of(["[carme-singleuser] waiting for the hub", f"I said: {line}40003"]) == 0


def test_only_names_with_a_uuid_are_sessions() -> None:
    names = {f"carme-{ID}": ID, "carme-0f9a": "", ID: "", f"carme-{ID.upper()}": "", f"x-carme-{ID}": ""}
    assert {name: session_of(replace(JOB, name=name)) for name in names} == names
