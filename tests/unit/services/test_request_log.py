"""What a service logs of a request: no secret of its address, and in the service's own format."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from jupyterhub.services.auth import HubOAuth
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import RequestHandler

from carme_hub.logs import write_json
from carme_hub.services.base import CarmeService


class BrokenHandler(RequestHandler):
    """Has an error that nobody expects."""

    async def get(self) -> None:
        raise RuntimeError("a bug")


class ServiceWithoutPages(CarmeService):
    """A service that has little besides what all have."""

    name = "ServiceWithoutPages"

    def handlers(self) -> list[Any]:
        return [("broken", BrokenHandler)]


@pytest.fixture
def service() -> Iterator[ServiceWithoutPages]:
    service = ServiceWithoutPages(log_level="WARN")
    write_json(service.config)
    service.logging_config = service.config.CarmeService.logging_config
    names = ("tornado", "tornado.access", "tornado.application", "tornado.general", "carme_hub", "asyncio")
    loggers = [logging.getLogger(name) for name in names]
    before = [(each.name, each.parent, each.propagate, each.level, list(each.handlers)) for each in loggers]
    yield service
    service.close_handlers()
    for logger, (name, parent, propagate, level, handlers) in zip(loggers, before, strict=True):
        logger.name, logger.parent, logger.propagate, logger.handlers = name, parent, propagate, handlers
        logger.setLevel(level)


async def test_a_code_or_token_in_an_address_is_not_logged_and_the_line_has_the_services_format(
    service: ServiceWithoutPages, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(HubOAuth, "get_user", lambda *args, **kwargs: asked.append(args))
    server = HTTPServer(service.web())
    [socket] = bind_sockets(0, "127.0.0.1")
    server.add_sockets([socket])
    try:
        address = f"http://127.0.0.1:{socket.getsockname()[1]}"
        for path in ("/oauth_callback?code=s3cret-code", "/static/none?token=s3cret-token", "/broken?a=1&state=s3cret"):
            answer = await AsyncHTTPClient(force_instance=True).fetch(address + path, raise_error=False)
            assert answer.code in (400, 404, 500)
    finally:
        server.stop()
        await server.close_all_connections()
    assert not asked, "the hub is asked for the user of a line, and the service waits"
    written = capfd.readouterr().err
    assert "s3cret" not in written
    records = [json.loads(line) for line in written.splitlines()]
    assert {record["logger"] for record in records} == {"ServiceWithoutPages"}
    for path in ("/oauth_callback?code=[secret]", "/static/none?token=[secret]", "/broken?a=1&state=[secret]"):
        assert [record for record in records if path in record["message"] and record["request"]], path
