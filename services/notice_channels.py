"""Notice channels: further ways on which people are told things, from packages that add ``carme_hub.notice_channels``.

Those that ``CarmeQuotas.notice_channels`` names get every notice once, beside mail and the webhook. One that fails or
takes too long is logged, and keeps nobody else's notice. How one is added is in docs/howto/add-a-notice-channel.md.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.entry_points import ExtensionPoint

#: Seconds that a channel has for one notice.
LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence for one user.

    Attributes:
        level: "info", "success", "warning" or "danger", as Bootstrap's alerts are called. at: UTC epoch seconds.
        link: address of the page that it is about, "" for none.
    """

    user: str
    level: str
    text: str
    at: int
    link: str = ""


#: A plain one is called in a thread, one that is ``async`` on the service's event loop.
NoticeChannel = Callable[[Notice], Awaitable[None] | None]

POINT = ExtensionPoint("carme_hub.notice_channels", "CarmeQuotas.notice_channels", "callable")


def notice_channels(settings: CarmeQuotas) -> Mapping[str, NoticeChannel]:
    """Return the channels that the settings name."""
    return POINT.load_all(settings.notice_channels, settings)


async def send(channel: NoticeChannel, notice: Notice) -> None:
    """Send a notice by one channel, and wait for the end of that; ``TimeoutError`` where it takes too long."""
    async with asyncio.timeout(LIMIT):
        if inspect.iscoroutinefunction(channel) or inspect.iscoroutinefunction(type(channel).__call__):
            result = channel(notice)
        else:
            result = await asyncio.to_thread(channel, notice)
        if inspect.isawaitable(result):
            await result
