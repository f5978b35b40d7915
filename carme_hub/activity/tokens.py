"""The tokens of reporters: each fits one session, and lets its holder write minutes of that session and nothing else.

A token is made of the session's id by a key that the hub and the activity service share. So nothing of it is stored,
and companions and batch jobs, which have no server and no other secret, have one as well.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

#: The key's name among the secrets of the database.
KEY = "activity"


@dataclass(frozen=True, slots=True)
class ReporterTokens:
    """Makes and checks tokens. ``key`` is secret."""

    key: str = field(repr=False)

    def token(self, session: str) -> str:
        """Return the token of a session."""
        return hmac.new(self.key.encode(), b"carme-activity:" + session.encode(), hashlib.sha256).hexdigest()

    def fits(self, session: str, token: str) -> bool:
        """Return whether a token is that of a session."""
        return hmac.compare_digest(self.token(session).encode(), token.encode(errors="replace"))


#: The key's name among the secrets of the database.
MAIL_KEY = "advice-mail"


@dataclass(frozen=True, slots=True)
class MailTokens:
    """Makes and checks the tokens of links that end a user's weekly mail, and do nothing else. ``key`` is secret."""

    key: str = field(repr=False)

    def token(self, user: str) -> str:
        """Return the token of a user."""
        return hmac.new(self.key.encode(), b"carme-advice-mail:" + user.encode(), hashlib.sha256).hexdigest()

    def fits(self, user: str, token: str) -> bool:
        """Return whether a token is that of a user."""
        return hmac.compare_digest(self.token(user).encode(), token.encode(errors="replace"))
