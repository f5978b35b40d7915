"""Status of a user's account: allowed, refused, or unknown now. The authenticator and the revoker use it."""

from __future__ import annotations

from dataclasses import dataclass

from carme_hub.errors import Refused


class NotAllowed(Refused):
    """The user may not use the hub.

    Args:
        proof: whether the refusal is certain (a closed account). A missing name is not: LDAP may not answer.
    """

    reason = "not-allowed"

    def __init__(self, message: str, *, proof: bool = False) -> None:
        super().__init__(message)
        self.proof = proof


class AccountsUnknown(Refused):
    """Only a Slurm account could allow the user, and Slurm has not answered since the hub started."""

    reason = "accounts-unknown"


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """Result of a check of a user. ``reason`` and ``proof`` explain a refusal."""

    is_allowed: bool = False
    groups: tuple[str, ...] = ()
    reason: str = ""
    proof: bool = False

    @classmethod
    def closed(cls, reason: str, groups: tuple[str, ...] = ()) -> AccountStatus:
        """Return the status of a user whom a setting or a closed account refuses for certain."""
        return cls(groups=groups, reason=reason, proof=True)
