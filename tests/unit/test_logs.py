"""Logs as JSON: one object a line, with the request, session, user and job that it is about."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tornado.httputil import HTTPHeaders
from traitlets.config import Application, Config

from carme_hub.config import configure
from carme_hub.logs import JsonFormatter, about, identify_requests, log_fields, request_id, write_json

SESSION = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.fixture
def lines() -> Any:
    """Return a logger and a function that reads what it has written."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    log = logging.getLogger("test-of-json-logs")
    log.addHandler(handler)
    log.propagate = False
    yield log, lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    log.removeHandler(handler)


def test_a_record_is_one_line_with_the_fields_of_what_it_is_about(lines: Any) -> None:
    log, read = lines
    with about(session=SESSION, user="alice", job=0):
        log.warning('Session %s of %s:\nforged {"level": 1}', SESSION, "alice")
        with about(job=17):
            log.info("not shown: the level is WARNING")
            log.error("with its job")
    log.error("after it")
    first, second, third = read()
    assert first["message"] == f'Session {SESSION} of alice:\nforged {{"level": 1}}'
    assert (first["level"], first["logger"]) == ("warning", "test-of-json-logs")
    assert (first["session"], first["user"]) == (SESSION, "alice")
    assert "job" not in first, "an empty field is left out"
    assert second["job"] == "17"
    assert not {"session", "user", "job"} & set(third)
    assert first["time"].endswith("Z")


def test_an_error_has_its_traceback_in_the_same_line(lines: Any) -> None:
    log, read = lines
    try:
        raise ValueError("the cause")
    except ValueError:
        log.exception("It failed")
    (line,) = read()
    assert line["message"] == "It failed"
    assert "ValueError: the cause" in line["traceback"]


async def test_a_task_that_is_started_inside_keeps_the_fields_and_others_do_not_get_them() -> None:
    seen = []

    async def look() -> None:
        await asyncio.sleep(0)
        seen.append(dict(log_fields()))

    with about(session=SESSION):
        inside = asyncio.create_task(look())
    await asyncio.gather(inside, asyncio.create_task(look()))
    assert seen == [{"session": SESSION}, {}]


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, 'a"b', "a\nb", "../../etc"])
def test_an_id_that_could_forge_a_line_is_replaced(given: str) -> None:
    made = request_id({"X-Request-ID": given})
    assert made != given
    assert made.isalnum()


def test_an_id_of_the_load_balancer_is_kept() -> None:
    assert request_id(HTTPHeaders({"x-request-id": "lb-1.7_a"})) == "lb-1.7_a"


async def test_each_request_has_an_id_its_session_and_at_its_end_its_user() -> None:
    """As a coroutine it has a context of its own, and its fields end with it."""
    seen: list[dict[str, str]] = []
    web: Any = SimpleNamespace(
        find_handler=lambda request: seen.append(dict(log_fields())) or request.path,
        log_request=lambda handler: seen.append(dict(log_fields())),
    )
    identify_requests(web)
    path = f"/hub/api/carme/sessions/{SESSION}/port"
    assert web.find_handler(SimpleNamespace(path=path, headers={"X-Request-ID": "r1"})) == path
    web.log_request(SimpleNamespace(_jupyterhub_user=SimpleNamespace(name="alice")))
    web.find_handler(SimpleNamespace(path="/hub/home", headers={}))
    assert seen[0] == {"request": "r1", "session": SESSION}
    assert seen[1] == {"request": "r1", "session": SESSION, "user": "alice"}
    assert set(seen[2]) == {"request"}, "the next request on the connection has fields of its own"


def test_the_switch_sets_it_for_the_hub_and_its_services_and_a_sites_own_stays() -> None:
    c = Config()
    configure(c, json_logs=True)
    assert c.JupyterHub.logging_config == c.CarmeService.logging_config
    mine = Config()
    mine.JupyterHub.logging_config = {"handlers": {}}
    write_json(mine)
    assert mine.JupyterHub.logging_config == {"handlers": {}}
    plain = Config()
    configure(plain)
    assert "logging_config" not in plain.JupyterHub


def test_an_application_with_it_writes_json(capfd: pytest.CaptureFixture[str]) -> None:
    c = Config()
    write_json(c)

    class Probe(Application):
        name = "probe"

    c.Probe.logging_config = c.JupyterHub.logging_config
    app = Probe(config=c, log_level="INFO")
    ours = logging.getLogger("carme_hub")
    before = ours.level, ours.propagate, list(ours.handlers)
    try:
        app.log.info("from the application")
        logging.getLogger("carme_hub.somewhere").warning("from a module")
        written = [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()]
    finally:
        app.close_handlers()
        for name in ("carme_hub", "asyncio"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [], True
        ours.level, ours.propagate, ours.handlers = before
    assert written == ["from the application", "from a module"]
