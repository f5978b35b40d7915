"""The addresses of the file page; the session's server extension adds them (``carme_hub/training/server``).

Nobody who starts a session waits for the page's code: it is imported at the first request for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from tornado import httputil
from tornado.routing import Router
from tornado.web import Application

if TYPE_CHECKING:
    from carme_hub.files.measurements import Measurements

#: Below the server's base URL, as a regular expression.
PATHS = r"carme/(?:files|uploads)(?:/.*)?"
#: Seconds until the first look whether the home is to be measured: what starts has other things to do.
FIRST_LOOK = 600.0


class FileRoutes(Router):
    """Finds the handlers of the file page.

    Args:
        base: the server's base URL. send, age: as ``Measurements`` takes them.
    """

    #: Jupyter Server looks at those of each handler, whether they ask who is there: these are of the handlers below.
    SUPPORTED_METHODS = ()

    def __init__(
        self,
        app: Application,
        base: str,
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
        age: Callable[[], Awaitable[float | None]],
    ) -> None:
        self._app, self._base, self._send, self._age = app, base, send, age
        self._table: list[tuple[re.Pattern[str], Any, dict[str, Any]]] = []
        self._measurements: Measurements | None = None

    @property
    def measurements(self) -> Measurements:
        """What was measured in this session."""
        from carme_hub.files.measurements import Measurements

        self._measurements = self._measurements or Measurements(self._send, self._age)
        return self._measurements

    async def measure_daily(self) -> None:
        """Measure the home once a day, as long as the session lasts."""
        await asyncio.sleep(FIRST_LOOK)
        await self.measurements.look_daily()

    def find_handler(self, request: httputil.HTTPServerRequest, **_: Any) -> httputil.HTTPMessageDelegate | None:
        """Return what answers a request, None for another address."""
        self._table = self._table or self._loaded()
        for pattern, handler, kwargs in self._table:
            if match := pattern.fullmatch(request.path):
                groups = [each.encode() for each in match.groups()]
                return self._app.get_handler_delegate(request, handler, kwargs, path_args=groups)
        return None

    def _loaded(self) -> list[tuple[re.Pattern[str], Any, dict[str, Any]]]:
        from carme_hub.files.downloads import ArchiveHandler, FileHandler
        from carme_hub.files.page import MeasureHandler, PageHandler
        from carme_hub.files.tus import Transfers, UploadHandler

        uploads, measured = {"transfers": Transfers()}, {"measurements": self.measurements}
        routes: list[tuple[str, Any, dict[str, Any]]] = [
            (r"carme/uploads/?", UploadHandler, uploads),
            (r"carme/uploads/([A-Za-z0-9_.-]+)", UploadHandler, uploads),
            (r"carme/files/?", PageHandler, measured),
            (r"carme/files/measure", MeasureHandler, measured),
            (r"carme/files/archive", ArchiveHandler, {}),
            (r"carme/files/file", FileHandler, {}),
        ]
        return [(re.compile(re.escape(self._base) + path), handler, kwargs) for path, handler, kwargs in routes]
