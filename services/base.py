"""The base of each service: a tornado server that the hub starts, with the hub's page layout and login.

A managed service that ends during its start takes the hub down with it. So a service listens first, prepares itself in
a task of its own, and answers 503 with a sentence until it is ready. It repeats the preparation until it succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader
from jupyterhub._data import DATA_FILES_PATH
from jupyterhub.services.auth import HubOAuthCallbackHandler
from jupyterhub.utils import make_ssl_context
from tornado.httpserver import HTTPServer
from tornado.log import access_log, app_log, gen_log
from tornado.web import Application as WebApplication
from tornado.web import StaticFileHandler
from traitlets import Float, Unicode
from traitlets.config import Application

from carme_hub.errors import CarmeError, ConfigError
from carme_hub.garbage import ShortCollections
from carme_hub.logs import identify_requests
from carme_hub.paths import share_folder
from carme_hub.services import parent_process

HUB_DATA = Path(DATA_FILES_PATH)
#: Seconds for which the service waits for a port that is in use.
_PORT_WAIT = 10.0


class CarmeService(Application):
    """A service that the hub starts with ``--config jupyterhub_config.py``."""

    config_path = Unicode(
        "jupyterhub_config.py", help="The hub's configuration file; the service reads its own settings from it."
    ).tag(config=True)
    retry = Float(5.0, min=0.1, help="Seconds between two attempts to get ready while the database is down.").tag(
        config=True
    )
    aliases = {"config": "CarmeService.config_path", "f": "CarmeService.config_path"}

    #: ``folder``: the folder of the service's own templates, which extend its ``layout.html``. ``title``: the service's
    #: name on pages.
    folder = ""
    title = ""
    #: Why the service cannot answer yet; "" when it is ready.
    not_ready = "The service is starting."
    _ended: asyncio.Event

    def initialize(self, argv: Any = None) -> None:
        """Read the command line and the hub's configuration file; the command line takes precedence."""
        self.parse_command_line(argv)
        line = self.cli_config
        file = Path(self.config_path)
        if not file.is_file():
            raise ConfigError(f"{file}: there is no such file; name it with --config")
        self.load_config_file(file.name, str(file.resolve().parent))
        self.update_config(line)

    # -- to be overridden ---------------------------------------------------------------------------------------------

    def handlers(self) -> list[Any]:
        """Return (path below the prefix, handler[, arguments])."""
        raise NotImplementedError

    async def get_ready(self) -> None:
        """Open what the handlers need. An error is logged, and the call is repeated after ``retry`` seconds."""

    async def finish(self) -> None:
        """Close what ``get_ready`` opened."""

    # -- start and end ------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        """The service's path at the proxy; begins and ends with a slash."""
        return os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/")

    def start(self) -> None:
        """Serve until the hub ends the service or is gone."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        server = HTTPServer(self.web(), ssl_options=tls_context(), xheaders=False, max_body_size=1 << 20)
        tasks = [asyncio.create_task(self._end_with_the_hub())]
        await self._listen(server)
        tasks.append(asyncio.create_task(self._become_ready()))
        await self._ended.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.stop()
        await self.finish()
        await server.close_all_connections()

    async def _listen(self, server: HTTPServer) -> None:
        """Listen; wait while the service of a hub that was killed just before still has the port."""
        address = urlsplit(os.environ.get("JUPYTERHUB_SERVICE_URL", "http://127.0.0.1:0"))
        deadline = time.monotonic() + _PORT_WAIT
        while not self._ended.is_set():
            try:
                return server.listen(address.port or 0, address.hostname or "127.0.0.1")
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _end_with_the_hub(self) -> None:
        """End the service when the hub's process is gone: the next hub starts its own service on the same port."""
        if "JUPYTERHUB_SERVICE_NAME" not in os.environ:
            return
        while not parent_process.is_gone():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await self._ended.wait()
                return
        self.log.warning("The hub is gone, so its service ends")
        self._ended.set()

    async def _become_ready(self) -> None:
        while True:
            try:
                await self.get_ready()
            except CarmeError as error:
                self.not_ready = str(error)
                self.log.error("The service is not ready, and tries again: %s", error)
                await asyncio.sleep(self.retry)
            except Exception as error:
                self.not_ready = "The service cannot start; its log says why."
                self.log.exception("The service is not ready, and tries again: %s", error)
                await asyncio.sleep(self.retry)
            else:
                self.not_ready = ""
                break
        collections = ShortCollections(asyncio.get_running_loop().call_soon_threadsafe, self.log)
        collections.start()
        await collections.run()

    def web(self) -> WebApplication:
        """Return the tornado application."""
        own = [(self.prefix + path.lstrip("/"), *rest) for path, *rest in self.handlers()]
        static = {"path": str(share_folder() / "static")}
        application = WebApplication(
            [
                *own,
                (self.prefix + "oauth_callback", HubOAuthCallbackHandler),
                (self.prefix + r"static/(.*)", StaticFileHandler, static),
            ],
            service=self,
            pages=page_environment(),
            cookie_secret=os.urandom(32),
            autoreload=False,
            default_handler_class=self.not_found_class(),
        )
        identify_requests(application)
        self._log_as_the_service()
        return application

    def _log_as_the_service(self) -> None:
        """Let what tornado logs be the service's own lines, as JupyterHub does in the hub."""
        for logger in (access_log, app_log, gen_log):
            logger.name = self.log.name
        tornado = logging.getLogger("tornado")
        tornado.parent, tornado.propagate = logging.getLogger(self.log.name), True
        tornado.setLevel(self.log.level)

    def not_found_class(self) -> Any:
        """Return the handler of paths that do not exist."""
        from carme_hub.services.handlers import NotFoundHandler

        return NotFoundHandler


def tls_context() -> ssl.SSLContext | None:
    """Return the TLS context for requests from the hub and the proxy, None without ``internal_ssl``."""
    key = os.environ.get("JUPYTERHUB_SSL_KEYFILE", "")
    if not key:
        return None
    names = ("JUPYTERHUB_SSL_CERTFILE", "JUPYTERHUB_SSL_CLIENT_CA")
    certificate, authority = (os.environ.get(name, "") for name in names)
    context: ssl.SSLContext = make_ssl_context(
        key, certificate, cafile=authority or None, purpose=ssl.Purpose.CLIENT_AUTH
    )
    return context


def page_environment() -> Environment:
    """Return a Jinja environment with our templates before the hub's; the hub's are also named ``templates/NAME``."""
    hub = FileSystemLoader(str(HUB_DATA / "templates"))
    ours = FileSystemLoader(str(share_folder() / "templates"))
    return Environment(
        loader=ChoiceLoader([PrefixLoader({"templates": hub}, "/"), ours, hub]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
