"""The users whom administrators keep out of this hub, by name: JupyterHub itself has no such state.

A lock is an act of an administrator in the database; the hub reads all of them at its start. ``Administration`` changes
``LOCKED``, and the authenticator asks it at each login, and again for those who are logged in. The two do not know each
other, since JupyterHub makes one and a spawner the other; a process is one hub, so they meet here.
"""

from __future__ import annotations

from collections.abc import Iterable

from carme_hub.domain.administration.acts import Act


class LockedUsers:
    """Locks by user name."""

    def __init__(self) -> None:
        self._locks: dict[str, Act] = {}

    def replace(self, locks: Iterable[Act]) -> None:
        """Know these locks, and no others."""
        self._locks = {lock.target: lock for lock in locks}

    def add(self, lock: Act) -> None:
        """Add a lock."""
        self._locks[lock.target] = lock

    def remove(self, user: str) -> None:
        """Forget the lock of a user."""
        self._locks.pop(user, None)

    def lock_of(self, user: str) -> Act | None:
        """Return the act that locked a user, None = the user is not locked."""
        return self._locks.get(user)

    def all(self) -> list[Act]:
        """Return all locks, by user."""
        return [self._locks[user] for user in sorted(self._locks)]


#: Those of this process's hub.
LOCKED = LockedUsers()
