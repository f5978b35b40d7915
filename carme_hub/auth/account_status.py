"""Where a user stands with the hub: in good standing, refused, or not to be told just now."""

from __future__ import annotations

from dataclasses import dataclass

from carme_hub.errors import Refused


class NotAllowed(Refused):
    """The user may not use the hub.

    Args:
        proof: something said so (a closed account). Without it a name is merely missing, as when LDAP is silent.
    """

    reason = "not-allowed"

    def __init__(self, message: str, *, proof: bool = False) -> None:
        super().__init__(message)
        self.proof = proof


class AccountsUnknown(Refused):
    """Only a Slurm account could let the user in, and Slurm has not answered since the hub started."""

    reason = "accounts-unknown"


@dataclass(frozen=True, slots=True)
class AccountStatus:
    """What a look at a user found. ``why`` and ``proof`` say more when it is not good."""

    good: bool = False
    groups: tuple[str, ...] = ()
    why: str = ""
    proof: bool = False

    @classmethod
    def closed(cls, why: str) -> AccountStatus:
        """Return the standing of a user whom a setting or a closed account shuts out for certain."""
        return cls(why=why, proof=True)
