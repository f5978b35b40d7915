"""Settings of the status page."""

from __future__ import annotations

from traitlets import Bool
from traitlets.config import LoggingConfigurable


class CarmeStatus(LoggingConfigurable):
    """The status page of the hub: what works now, and incidents."""

    public = Bool(
        False,
        help="""Whether ``/hub/carme/status`` can be read without a login.

        By default users log in for it. It names no user, session or node in either case; incidents have the text that
        administrators wrote. Example::

            c.CarmeStatus.public = True
        """,
    ).tag(config=True)
