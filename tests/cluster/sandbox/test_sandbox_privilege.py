"""The hub acts for users by one helper and one sudo rule; not for others, and others cannot use the helper."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import time
import uuid
from pathlib import Path

import pytest

from carme_hub.domain.cluster.jobs import JobSpec
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.sandbox import Cluster
from carme_hub.slurm.submit.submitters import document

SUDO = "/usr/bin/sudo"


def _rest(cluster: Cluster, user: str, token: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
    """Send one request to slurmrestd; return HTTP status and document."""
    text = json.dumps(body).encode() if body is not None else b""
    head = (
        f"{'POST' if body is not None else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\nX-SLURM-USER-NAME: {user}\r\n"
        f"X-SLURM-USER-TOKEN: {token}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(cluster.rest_socket))
        client.sendall(head.encode() + text)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += client.recv(65536)
        headers, _, rest = answer.partition(b"\r\n\r\n")
        length = next(int(h.split(b":")[1]) for h in headers.lower().split(b"\r\n") if h.startswith(b"content-length"))
        while len(rest) < length:
            rest += client.recv(65536)
    found: dict[str, object] = json.loads(rest or b"{}")
    return int(headers.split()[1]), found


def _api(cluster: Cluster) -> str:
    return "v0.0.38" if cluster.release.startswith("22.") else "v0.0.40"


def _job(cluster: Cluster, user: str) -> dict[str, object]:
    home = cluster.environment(user)["HOME"] if user != "root" else "/root"
    job: dict[str, object] = {"name": "by-rest", "current_working_directory": home, "standard_output": "/dev/null"}
    if _api(cluster) == "v0.0.38":
        job |= {"environment": {"A": "b"}}
        return {"script": "#!/bin/sh\nsleep 60\n", "job": job}
    job |= {"environment": ["A=b"], "script": "#!/bin/sh\nsleep 60\n"}
    return {"job": job}


def _token(cluster: Cluster, user: str) -> str:
    """Get a token as the hub does: as the hub's user, through sudo."""
    return cluster.run(*cluster.token_argv, user, user=cluster.hub_user).stdout.strip()


def test_the_hub_submits_as_alice_with_a_token(quiet: Cluster) -> None:
    status, answer = _rest(
        quiet, "alice", _token(quiet, "alice"), f"/slurm/{_api(quiet)}/job/submit", _job(quiet, "alice")
    )
    assert status == 200, answer
    row = next(row for row in quiet.squeue() if row["id"] == str(answer["job_id"]))
    assert (row["user"], row["name"]) == ("alice", "by-rest")


@pytest.mark.parametrize("user", ["root", "carme-hub", "carme-rest", "slurm", "nosuch", "-h", "alice bob"])
def test_no_token_for_anybody_who_is_not_a_user(quiet: Cluster, user: str) -> None:
    done = quiet.run(*quiet.token_argv, user, user=quiet.hub_user, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "carme-token" in done.stderr


def test_a_user_outside_the_group_gets_no_token(quiet: Cluster) -> None:
    settings = quiet.state / "etc/carme-token.json"
    before = settings.read_text()
    settings.write_text(before.replace("carme-users", "carme-teachers"))
    try:
        done = quiet.run(*quiet.token_argv, "bob", user=quiet.hub_user, check=False)
        assert _token(quiet, "tina")
    finally:
        settings.write_text(before)
    assert done.returncode != 0
    assert "not in the group" in done.stderr


@pytest.mark.parametrize("user", ["alice", "carme-rest"])
def test_nobody_but_the_hub_may_run_the_helper(quiet: Cluster, user: str) -> None:
    done = quiet.run(*quiet.token_argv, "alice", user=user, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    helper = quiet.token_argv[2]
    assert quiet.run(helper, "token", "alice", user=user, check=False).returncode != 0  # no sudo: no key


def test_the_hub_may_run_nothing_else_as_root_or_as_a_user(quiet: Cluster) -> None:
    for argv in (["/usr/bin/id"], ["-u", "alice", "/usr/bin/id"], ["-u", "alice", str(quiet.submit_helper), "x"]):
        assert quiet.run(SUDO, "-n", *argv, user=quiet.hub_user, check=False).returncode != 0
    assert quiet.run("/bin/cat", str(quiet.layout.jwt_key), user=quiet.hub_user, check=False).returncode != 0


def test_a_forged_token_and_a_forged_name_get_nothing(quiet: Cluster) -> None:
    token = _token(quiet, "alice")
    path = f"/slurm/{_api(quiet)}/job/submit"
    assert _rest(quiet, "bob", token, path, _job(quiet, "bob"))[0] != 200
    forged = token.rpartition(".")[0] + "." + "A" * 43
    assert _rest(quiet, "alice", forged, path, _job(quiet, "alice"))[0] != 200
    assert quiet.squeue("-t", "PD,R") == []


def test_even_the_key_submits_no_job_as_root(quiet: Cluster) -> None:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    now = int(time.time())
    signed = part({"alg": "HS256", "typ": "JWT"}) + "." + part({"iat": now, "exp": now + 60, "sun": "root"})
    signature = hmac.new(quiet.layout.jwt_key.read_bytes(), signed.encode(), hashlib.sha256).digest()
    token = signed + "." + base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    status, answer = _rest(quiet, "root", token, f"/slurm/{_api(quiet)}/job/submit", _job(quiet, "root"))
    assert status != 200 or answer.get("errors"), answer
    assert quiet.squeue("-t", "PD,R") == []


def test_the_socket_is_closed_to_users(quiet: Cluster) -> None:
    code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(quiet.rest_socket)!r})"
    assert quiet.run("/usr/bin/python3", "-c", code, user="alice", check=False).returncode != 0
    assert quiet.run("/usr/bin/python3", "-c", code, user=quiet.hub_user).returncode == 0


def test_tail_reads_as_the_user_and_nothing_that_the_user_cannot_read(quiet: Cluster) -> None:
    session = str(uuid.uuid4())
    home = Path(quiet.environment("alice")["HOME"])
    folder = home / ".carme/sessions" / session
    quiet.run("/bin/mkdir", "-p", "-m", "700", str(folder), user="alice")
    quiet.run("/usr/bin/tee", str(folder / "job.log"), user="alice", input="it went wrong\n")
    assert quiet.run(*quiet.tail_argv, "alice", session, user=quiet.hub_user).stdout == "it went wrong\n"
    assert quiet.run(*quiet.tail_argv, "bob", session, user=quiet.hub_user, check=False).returncode != 0
    quiet.run("/bin/ln", "-sf", "/etc/shadow", str(folder / "job.log"), user="alice")
    assert quiet.run(*quiet.tail_argv, "alice", session, user=quiet.hub_user, check=False).stdout == ""
    quiet.run("/bin/rm", str(folder / "job.log"), user="alice")
    (folder / "job.log").write_text("of root")  # another user's file in the user's folder
    assert quiet.run(*quiet.tail_argv, "alice", session, user=quiet.hub_user, check=False).stdout == ""
    quiet.run("/bin/rm", "-rf", str(folder), user="alice")


def test_the_submit_helper_runs_a_job_as_the_user(quiet: Cluster) -> None:
    session = str(uuid.uuid4())
    home = quiet.environment("alice")["HOME"]
    folder = Path(home) / ".carme/sessions" / session
    spec = JobSpec(
        name=f"carme-{session}",
        user="alice",
        script='#!/bin/sh\n(id -un; echo "$CUDA_VISIBLE_DEVICES") > "$CARME_SESSION_FOLDER/seen"\n',
        data=b'{"secret": 1}',
        session_folder=str(folder),
        gpus=Gpus("a100", 2),
        memory_mib=100,
        account="physics",
        environment={"CARME_SESSION": session, "CARME_SESSION_FOLDER": str(folder)},
    )
    argv = [SUDO, "-n", "-u", "alice", str(quiet.submit_helper)]
    text = document(spec).decode()
    job = int(quiet.run(*argv, user=quiet.hub_user, input=text).stdout)
    assert quiet.wait_job(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert (folder / "seen").read_text().split() == ["alice", "0,1"]
    assert (folder / "data.json").stat().st_mode & 0o777 == 0o600
    assert (folder / "data.json").owner() == "alice"
    for user in ("bob", "root", "carme-rest"):  # the document says alice; root and others are not in the group
        done = quiet.run(SUDO, "-n", "-u", user, str(quiet.submit_helper), user=quiet.hub_user, input=text, check=False)
        assert done.returncode != 0
    assert len([row for row in quiet.squeue() if row["name"] == spec.name]) == 1


async def test_the_hub_gets_a_token_in_a_few_milliseconds(quiet: Cluster) -> None:
    took = []
    for _ in range(5):
        begun = time.monotonic()
        await asyncio.to_thread(_token, quiet, "alice")
        took.append(time.monotonic() - begun)
    assert min(took) < 0.5  # what it costs, not what else runs
