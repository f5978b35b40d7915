"""What all handlers of the file page share: rights, answers in a thread, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import ensure_async
from tornado import web
from tornado.ioloop import IOLoop

from carme_hub.files.places import NotPossible

T = TypeVar("T")
#: File systems may be slow or hang: transfers, which are long, do not wait for each other, and listings not for them.
MOST_TRANSFERS = 32
TRANSFERS = ThreadPoolExecutor(MOST_TRANSFERS, "carme-files-transfer")
LISTINGS = ThreadPoolExecutor(4, "carme-files-list")


class FilesHandler(JupyterHandler):
    """A handler of the file page. Whoever may use the server's contents may use it."""

    auth_resource = "contents"

    async def prepare(self) -> None:  # type: ignore[override]
        """Refuse strangers before anything of the request is used: bodies are read as they arrive."""
        await super().prepare()
        if self._finished or self.request.method == "OPTIONS":
            return
        if self.current_user is None:
            if self.request.method == "GET":
                return  # the method sends people to the login
            raise web.HTTPError(403)
        action = "read" if self.request.method in ("GET", "HEAD") else "write"
        if not await ensure_async(self.authorizer.is_authorized(self, self.current_user, action, self.auth_resource)):
            raise web.HTTPError(403)

    @property
    def home(self) -> Path:
        """The user's home."""
        return Path.home()

    def raw_argument(self, name: str) -> bytes:
        """Return an argument of the URL as its bytes: a name need not be UTF-8, and may end with spaces."""
        return (self.request.query_arguments.get(name) or [b""])[-1]

    def raw_arguments(self, name: str) -> list[bytes]:
        """Return all arguments of this name."""
        return list(self.request.query_arguments.get(name) or ())

    async def blocking(self, threads: ThreadPoolExecutor, work: Callable[..., T], *args: Any) -> T:
        """Return what a function returns that waits for files; ``NotPossible`` becomes the answer."""
        try:
            return await IOLoop.current().run_in_executor(threads, work, *args)
        except NotPossible as error:
            raise as_answer(error) from error

    def write_error(self, status_code: int, **more: Any) -> None:  # noqa: ARG002  Tornado's
        """Answer with the reason in plain text, which programs and people read alike."""
        error = (more.get("exc_info") or (None, None))[1]
        text = getattr(error, "log_message", None) or self._reason
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        args = getattr(error, "args", ())
        self.finish((text % args if args else text.replace("%%", "%")) + "\n")


def as_answer(error: NotPossible) -> web.HTTPError:
    """Return why something cannot be done as the answer of a request."""
    return web.HTTPError(error.status, "%s", str(error))
