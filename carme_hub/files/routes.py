"""The addresses of the file page; the session's server extension adds them (``carme_hub/training/server``)."""

from __future__ import annotations

from typing import Any

from jupyter_server.utils import url_path_join

from carme_hub.files.downloads import ArchiveHandler, FileHandler
from carme_hub.files.measurements import Measurements
from carme_hub.files.page import MeasureHandler, PageHandler
from carme_hub.files.tus import Transfers, UploadHandler


def routes(base: str, transfers: Transfers, measurements: Measurements) -> list[Any]:
    """Return the handlers below the server's base URL."""
    shared = {"transfers": transfers}
    return [
        (url_path_join(base, r"carme/uploads/?"), UploadHandler, shared),
        (url_path_join(base, r"carme/uploads/([A-Za-z0-9_.-]+)"), UploadHandler, shared),
        (url_path_join(base, r"carme/files/?"), PageHandler, {"measurements": measurements}),
        (url_path_join(base, r"carme/files/measure"), MeasureHandler, {"measurements": measurements}),
        (url_path_join(base, r"carme/files/archive"), ArchiveHandler),
        (url_path_join(base, r"carme/files/file"), FileHandler),
    ]
