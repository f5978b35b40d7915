"""Secret addresses of users' own iCalendar feeds; pages and REST create and revoke them.

Calendars on phones cannot log in, so everybody with the address sees the user's bookings. Only the digest of the secret
is stored (a note of the ledger's database), so the address is shown once, when it is created.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass

from carme_hub.services.idempotency import IdempotencyStore
from carme_hub.store.ledger.idempotency import digest
from carme_hub.store.threads import in_store_thread

#: 16 hex digits that identify the user, and 32 random bytes.
PATTERN = r"^[0-9a-f]{16}-[A-Za-z0-9_-]{43}$"
_NOTE = "feed:"


@dataclass(frozen=True, slots=True)
class Feeds:
    """All users' feeds."""

    stores: IdempotencyStore

    async def make(self, user: str) -> str:
        """Return a new secret; the previous one becomes invalid."""
        secret = f"{_handle(user)}-{secrets.token_urlsafe(32)}"
        await self._write(user, {"user": user, "sha256": digest(secret)})
        return secret

    async def revoke(self, user: str) -> None:
        """Revoke the user's feed, if there is one."""
        if await self.made(user):
            await self._write(user, {})

    async def made(self, user: str) -> int:
        """Return when the user's secret was created, 0 if there is none."""
        note = await in_store_thread(self._note, _handle(user))
        return note[1] if note is not None and note[0].get("user") == user else 0

    async def user_of(self, secret: str) -> str:
        """Return the user of a secret, "" if it is not valid."""
        note = await in_store_thread(self._note, secret.partition("-")[0])
        if note is None or not hmac.compare_digest(str(note[0].get("sha256", "")), digest(secret)):
            return ""
        return str(note[0]["user"])

    def _note(self, handle: str) -> tuple[dict[str, str], int] | None:
        with self.stores.store.reading(self.stores.cluster) as reads:
            note = reads.note(_NOTE + handle)
        return (note.value, int(note.at)) if note is not None and isinstance(note.value, dict) else None

    async def _write(self, user: str, value: dict[str, str]) -> None:
        await in_store_thread(self._keep, user, value)

    def _keep(self, user: str, value: dict[str, str]) -> None:
        with self.stores.store.transaction(self.stores.cluster) as writes:
            writes.replace_note(_NOTE + _handle(user), value, self.stores.clock(), user)


def _handle(user: str) -> str:
    return digest(f"feed {user}")[:16]
