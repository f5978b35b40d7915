"""Notice channels: further ways to send notices to users, from the entry points ``carme_hub.notice_channels``.

The channels that ``CarmeQuotas.notice_channels`` names get every notice once, in addition to mail and the webhook. If a
channel fails or takes too long, the error is logged and the other channels and notices are not affected.
docs/howto/add-a-notice-channel.md describes how to add one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.entry_points import ExtensionPoint


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence for one user.

    Attributes:
        level: "info", "success", "warning" or "danger", the names of Bootstrap's alerts. at: UTC epoch seconds.
        link: URL of the page about it, "" for none.
    """

    user: str
    level: str
    text: str
    at: int
    link: str = ""


#: A plain function is called in a thread, an ``async`` one on the service's event loop.
NoticeChannel = Callable[[Notice], Awaitable[None] | None]

POINT = ExtensionPoint("carme_hub.notice_channels", "CarmeQuotas.notice_channels", "callable")


def notice_channels(settings: CarmeQuotas) -> Mapping[str, NoticeChannel]:
    """Return the channels that the settings name."""
    return POINT.load_all(settings.notice_channels, settings)
