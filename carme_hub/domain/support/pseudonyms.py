"""Other names in place of users', the same everywhere in one bundle. Pure.

The names are random, so they say nothing about the users, and two bundles cannot be compared. Whoever made the bundle
keeps the list of who is who.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

#: Users of the system, not people: their names explain a text, and tell nothing.
NOT_PEOPLE = frozenset(
    {
        *("root", "slurm", "munge", "nobody", "daemon", "postgres", "mysql", "www-data", "nginx", "systemd"),
        *("carme", "carme-hub", "jupyterhub", "jupyter", "hub", "sandbox", "user", "users", "admin", "unknown", "none"),
    }
)


#: Where programs write a user's name: in addresses of the hub, in paths of homes, in fields.
_PLACES = re.compile(
    r"(?:/(?:hub/)?(?:api/users|user|spawn|home)/|\b(?:user(?:name)?|owner|UserId|User)[=:]\s*[\"']?)([A-Za-z_][\w.\-]{1,63})"
)


def names_in(text: str) -> set[str]:
    """Return what stands in a text where programs write a user's name."""
    return {found.rstrip(".-") for found in _PLACES.findall(text)}


class Pseudonyms:
    """Replaces names of users in texts.

    Args:
        names: of users. random: returns a random word, such as ``secrets.token_hex(4)``.
    """

    def __init__(self, names: Iterable[str], random: Callable[[], str]) -> None:
        people = sorted({name for name in names if name and name.lower() not in NOT_PEOPLE}, key=lambda n: (-len(n), n))
        self._names: dict[str, str] = {}
        taken: set[str] = set()
        self._of: dict[str, str] = {}
        for name in people:
            while (word := f"user-{random()}") in taken:
                pass
            taken.add(word)
            self._names[word] = name
            self._of[name.lower()] = word
        # As a whole word: "ann" is not in "annual", but in "/home/ann", "job_of_ann", "Ann@example.org" and "%3Aann".
        parts = "|".join(re.escape(name) for name in people)
        whole = rf"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{{2}}))({parts})(?![A-Za-z0-9])"
        self._pattern = re.compile(whole, re.IGNORECASE) if people else None

    @property
    def who_is_who(self) -> Mapping[str, str]:
        """The names by their pseudonyms."""
        return dict(self._names)

    def text(self, text: str) -> str:
        """Return a text with pseudonyms."""
        return self._pattern.sub(lambda found: self._of[found[1].lower()], text) if self._pattern is not None else text
