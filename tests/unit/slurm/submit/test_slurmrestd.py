"""slurmrestd: both dialects, tokens that end, refusals, and answers that prove nothing."""

from __future__ import annotations

import asyncio
import base64
import getpass
import json
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from forged_slurm import ForgedSlurm

from carme_hub.domain.cluster.jobs import JobSpec
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.errors import ConfigError, SlurmRejected, SlurmUnreachable
from carme_hub.slurm.command import Commands
from carme_hub.slurm.submit.slurmrestd import RestSubmitter, plain_body, typed_body
from carme_hub.slurm.submit.tokens import TokenCache

SPEC = JobSpec(
    name="carme-0f9a",
    user=getpass.getuser(),
    script="#!/bin/sh\n",
    data=b"\x00secret",
    session_folder="/home/alice/.carme/sessions/0f9a",
    gpus=Gpus("a100", 2),
    account="science",
    environment={"CARME_SESSION": "0f9a"},
)
OLD, NEW = ("v0.0.36", "v0.0.37", "v0.0.38"), ("v0.0.40", "v0.0.41", "v0.0.42")


def token(name: str, lifetime: float = 300.0) -> str:
    """Return a token as Slurm mints it, signed with nothing."""
    body = json.dumps({"exp": time.time() + lifetime, "sun": name}).encode()
    return f"h.{base64.urlsafe_b64encode(body).decode().rstrip('=')}.{name}"


class ForgedRestd:
    """Speaks as slurmrestd does, to those with the right token."""

    def __init__(self) -> None:
        self.versions = OLD
        self.good = {"one"}
        self.bodies: list[dict[str, Any]] = []
        self.probes = 0
        self.answer: dict[str, Any] = {"errors": [], "job_id": 42, "step_id": "BATCH"}
        self.status = 200
        self.delay = 0.0
        self.raw: bytes | None = None

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request."""
        version, rest = request.match_info["version"], request.match_info["rest"]
        if version not in self.versions:
            return web.Response(status=404, text="Unable find requested URL.")
        if rest == "ping":  # 24.11 does not look at the token here
            return web.json_response({"errors": [], "pings": []})
        name = request.headers["X-SLURM-USER-TOKEN"].rpartition(".")[2]
        if name not in self.good:
            return web.json_response({"errors": [{"error_code": 5005, "error": "Zero Bytes were …"}]}, status=500)
        if rest == "licenses":
            self.probes += 1
            return web.json_response({"errors": [], "licenses": []})
        await asyncio.sleep(self.delay)
        if self.raw is not None:
            return web.Response(body=self.raw)
        self.bodies.append(await request.json())
        return web.json_response(self.answer, status=self.status)


@pytest_asyncio.fixture(loop_scope="module")
async def restd(tmp_path: Path) -> AsyncIterator[ForgedRestd]:
    forged = ForgedRestd()
    app = web.Application()
    app.router.add_route("*", "/slurm/{version}/{rest:.*}", forged.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "sock")).start()
    yield forged
    await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="module")
async def rest(restd: ForgedRestd, forged: ForgedSlurm, tmp_path: Path) -> AsyncIterator[RestSubmitter]:
    forged.say("token", token("one") + "\n")
    forged.say("scontrol")
    submitter = RestSubmitter(
        f"unix://{tmp_path}/sock",
        token_command=(str(tmp_path / "bin/token"),),
        token_lifetime=300,
        commands=Commands(prefix=str(tmp_path), timeout=60.0),
    )
    yield submitter
    await submitter.close()


async def test_the_dialect_of_22_05(rest: RestSubmitter, restd: ForgedRestd, forged: ForgedSlurm) -> None:
    assert await rest.submit(SPEC) == 42
    job = restd.bodies[0]["job"]
    assert (job["gres"], job["time_limit"], job["memory_per_node"]) == ("gpu:a100:2", 60, 1024)
    assert job["environment"]["CARME_SESSION"] == "0f9a"
    assert zlib.decompress(base64.b64decode(job["environment"]["CARME_DATA"])) == SPEC.data
    assert restd.bodies[0]["script"] == SPEC.script
    assert forged.calls("scontrol") == ["update JobId=42 Requeue=0"]


async def test_the_dialect_of_24_11(rest: RestSubmitter, restd: ForgedRestd, forged: ForgedSlurm) -> None:
    restd.versions = NEW
    restd.answer = {"errors": [], "result": {"job_id": 43}, "job_id": 43}
    assert await rest.submit(SPEC) == 43
    job = restd.bodies[0]["job"]
    assert job["tres_per_node"] == "gres/gpu:a100:2"
    assert job["time_limit"] == {"set": True, "infinite": False, "number": 60}
    assert "CARME_SESSION=0f9a" in job["environment"]
    assert job["script"] == SPEC.script
    assert job["requeue"] is False
    assert forged.calls("scontrol") == []


async def test_a_request_that_is_not_understood_is_refused_and_not_asked_again(
    rest: RestSubmitter, restd: ForgedRestd
) -> None:
    """The answer is that of slurmrestd 22.05."""
    why = {"description": 'Unable to process key "exclude_nodes"', "error_number": -1, "error": "Unspecified error"}
    restd.status, restd.answer = 400, {"errors": [why, {"error_code": 9001, "error": "Failure during parsing"}]}
    with pytest.raises(SlurmRejected, match='does not understand the request: Unable to process key "exclude_nodes"'):
        await rest.submit(SPEC)
    assert len(restd.bodies) == 1


async def test_one_token_and_one_search_for_many_starts(
    rest: RestSubmitter, restd: ForgedRestd, forged: ForgedSlurm
) -> None:
    await asyncio.gather(*(rest.submit(SPEC) for _ in range(10)))
    await rest.submit(SPEC)
    assert len(restd.bodies) == 11
    assert len(forged.calls("token")) == 1


async def test_a_token_that_slurm_takes_no_more_is_fetched_anew_and_the_job_submitted_once(
    rest: RestSubmitter, restd: ForgedRestd, forged: ForgedSlurm
) -> None:
    await rest.submit(SPEC)
    restd.good = {"two"}
    forged.say("token", token("two"))
    assert await rest.submit(SPEC) == 42
    assert len(restd.bodies) == 2
    await rest.submit(SPEC)
    assert len(forged.calls("token")) == 2


@pytest.mark.parametrize("versions", [OLD, NEW])
async def test_a_token_that_was_never_good_is_fetched_anew_too(
    versions: tuple[str, ...], rest: RestSubmitter, restd: ForgedRestd, forged: ForgedSlurm, tmp_path: Path
) -> None:
    restd.versions = versions
    forged.say(
        "token", token("one"), before=f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; echo a.b.c; exit; }}"
    )
    assert await rest.submit(SPEC) == 42
    assert len(restd.bodies) == 1


async def test_a_failure_with_a_good_token_is_not_put_again(
    rest: RestSubmitter, restd: ForgedRestd, forged: ForgedSlurm
) -> None:
    await rest.submit(SPEC)
    forged.say("token", token("two"))
    restd.good = {"one", "two"}
    restd.status, restd.answer = 500, {"errors": [{"error_code": -1, "error": "Unspecified error"}]}
    with pytest.raises(SlurmUnreachable, match="Unspecified"):
        await rest.submit(SPEC)
    assert len(restd.bodies) == 2


async def test_what_is_said_beside_a_job_id_is_why_it_waits_and_no_refusal(
    rest: RestSubmitter, restd: ForgedRestd
) -> None:
    # As slurmrestd of 22.05 answers where all nodes that could do are down or reserved: the job is in the queue.
    why = {"error_code": 2068, "error": "Required node not available (down, drained or reserved)"}
    restd.answer = {"errors": [why], "job_id": 7, "step_id": "BATCH", "job_submit_user_msg": ""}
    assert await rest.submit(SPEC) == 7


@pytest.mark.parametrize(
    ("errors", "message", "error"),
    [
        ([{"error_code": 2045, "error": "Invalid account or …"}], "", SlurmRejected),
        ([{"error_number": 2072, "description": "Invalid gres"}], "", SlurmRejected),
        ([{"error_code": -1, "error": "Unspecified error"}], "Choose a GPU type.", SlurmRejected),
        ([{"error_code": 1800, "error": "Unable to contact slurm controller"}], "", SlurmUnreachable),
        ([{"error_code": 5004, "error": "Socket timed out"}], "", SlurmUnreachable),
        ([{"error_code": 2045}, {"error_code": 5004}], "", SlurmUnreachable),
        ([{"error": "no number"}], "", SlurmUnreachable),
    ],
)
async def test_slurms_numbers_tell_a_refusal(
    errors: list[dict[str, Any]], message: str, error: type[Exception], rest: RestSubmitter, restd: ForgedRestd
) -> None:
    restd.status, restd.answer = 500, {"errors": errors, "job_submit_user_msg": message}
    with pytest.raises(error) as caught:
        await rest.submit(SPEC)
    assert str(message or errors[0].get("error", errors[0].get("description", ""))) in str(caught.value)


@pytest.mark.parametrize(
    "raw", [b"", b"junk", b"[1]", b"{", b'{"job_id": 0, "errors": []}', b'{"job_id": "7"}', b"\xff"]
)
async def test_junk_with_http_200_is_no_answer(raw: bytes, rest: RestSubmitter, restd: ForgedRestd) -> None:
    restd.raw = raw
    with pytest.raises(SlurmUnreachable):
        await rest.submit(SPEC)


async def test_slow_and_dead_are_no_answer(rest: RestSubmitter, restd: ForgedRestd, tmp_path: Path) -> None:
    await rest.submit(SPEC)
    restd.delay, rest._commands.timeout = 2.0, 0.3
    with pytest.raises(SlurmUnreachable, match="no answer"):
        await rest.submit(SPEC)
    (tmp_path / "sock").unlink()
    await rest.close()
    with pytest.raises(SlurmUnreachable, match="slurmrestd"):
        await rest.submit(SPEC)


async def test_an_upgrade_of_slurm_is_noticed(rest: RestSubmitter, restd: ForgedRestd) -> None:
    await rest.submit(SPEC)
    restd.versions = NEW
    with pytest.raises(SlurmUnreachable):
        await rest.submit(SPEC)
    assert await rest.submit(SPEC) == 42


async def test_no_token_is_a_refusal_that_says_why(rest: RestSubmitter, forged: ForgedSlurm) -> None:
    forged.say("token", err="carme-token: bob is not in the group", code=1)
    with pytest.raises(SlurmRejected, match="not in the group"):
        await rest.submit(SPEC)


async def test_tokens_are_used_until_a_minute_before_their_end(forged: ForgedSlurm, commands: Commands) -> None:
    now = time.time()
    tokens = TokenCache((str(forged.prefix / "bin/token"),), 300, commands, clock=lambda: now)
    forged.say("token", "SLURM_JWT=" + token("one", 200))
    first = await tokens.of("alice")
    assert first.endswith(".one")
    now += 130
    assert await tokens.of("alice") == first
    now += 20
    forged.say("token", token("two"))
    assert (await tokens.of("alice")).endswith(".two")
    assert await tokens.of("bob") != ""
    assert len(forged.calls("token")) == 3
    forged.say("token", "no token\n")
    with pytest.raises(SlurmUnreachable):
        await tokens.of("carol")
    assert ".two" not in repr(tokens._tokens)


def test_a_lowered_priority_is_said_in_each_version_and_only_then() -> None:
    for body in (plain_body, typed_body):
        assert body(replace(SPEC, nice=60), "/")["job"]["nice"] == 60
        assert "nice" not in body(SPEC, "/")["job"]


def test_gpus_of_several_nodes_are_asked_for_node_by_node_in_each_version() -> None:
    several = replace(SPEC, gpus=Gpus("a100", 4), nodes=2)
    old, new = plain_body(several, "/")["job"], typed_body(several, "/")["job"]
    assert (old["nodes"], old["gres"]) == ([2, 2], "gpu:a100:2")
    assert (new["minimum_nodes"], new["maximum_nodes"], new["tres_per_node"]) == (2, 2, "gres/gpu:a100:2")
    assert [(job["tasks"], job["tasks_per_node"]) for job in (old, new)] == [(2, 1), (2, 1)]
    assert "tasks_per_node" not in plain_body(SPEC, "/")["job"]


def test_a_booking_of_several_nodes_is_named_whole_in_each_version() -> None:
    listed = "carme-0123456789abcdef-0,carme-0123456789abcdef-1"
    for body in (plain_body, typed_body):
        assert body(replace(SPEC, reservation=listed), "/")["job"]["reservation"] == listed


def test_nodes_that_a_job_must_not_get_are_said_in_each_version_and_only_then() -> None:
    for body, name, said in ((plain_body, "exclude_nodes", "n1,n2"), (typed_body, "excluded_nodes", ["n1", "n2"])):
        assert body(replace(SPEC, exclude="n1,n2"), "/")["job"][name] == said
        assert name not in body(SPEC, "/")["job"]


def test_the_only_node_that_a_job_may_get_is_said_in_each_version() -> None:
    for body, name, said in ((plain_body, "nodelist", "n1"), (typed_body, "required_nodes", ["n1"])):
        assert body(replace(SPEC, node="n1"), "/")["job"][name] == said
        assert name not in body(SPEC, "/")["job"]


def test_options_that_the_api_cannot_say_are_named() -> None:
    assert plain_body(replace(SPEC, extra={"constraint": "fast", "nice": "5"}), "/")["job"]["nice"] == 5
    with pytest.raises(ConfigError, match="exclusive"):
        typed_body(replace(SPEC, extra={"exclusive": ""}), "/")
    with pytest.raises(ConfigError, match="rest_url"):
        RestSubmitter("ftp://x", token_command=("t",), token_lifetime=300, commands=Commands())
