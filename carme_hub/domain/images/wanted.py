"""The offer of a user's image that is wanted, and how far it is: to be looked at, decided on, published. Pure.

An offer to a group is published as it is. One to everybody, or one that passes on an image below to people who are not
offered that, needs an administrator. So that they decide on what others get, it is taken, hardened and scanned first,
and the approval is for that digest alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from .offers import Offer, To

#: Seconds before it is tried again: the first time, and at most.
_PAUSE, _LONGEST = 300.0, 6 * 3600.0


class Step(Enum):
    """What ``carme-hub image publish`` does next."""

    PREPARE = "prepare"
    PUBLISH = "publish"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Wanted:
    """To whom the user wants it offered, as an image of the store.

    Attributes:
        offer: to whom, and who said so, since when. problem: why it is not published, for good.
        beyond: why the offer passes on an image below to people who are not offered that, "" = it does not.
        digest: of the image that was taken of it for an administrator. found: its packages beside those of its base.
        allowed: who allows that digest, "" = it is not decided; with_base: knowing what ``beyond`` says.
        void: why an approval does not count any more.
        waiting: why it could not be published the last time, which says nothing of the image; tries: how often,
            again: when it is tried again (UTC epoch).
    """

    offer: Offer
    allowed: str = ""
    problem: str = ""
    digest: str = ""
    found: str = ""
    beyond: str = ""
    with_base: bool = False
    void: str = ""
    waiting: str = ""
    tries: int = 0
    again: float = 0.0

    @property
    def needs_leave(self) -> bool:
        """Whether an administrator decides."""
        return self.offer.to is To.EVERYBODY or bool(self.beyond)

    @property
    def is_allowed(self) -> bool:
        """Whether it may be published; an administrator's own image needs nobody else's look at it."""
        if not self.needs_leave:
            return True
        known = bool(self.digest) or self.allowed == self.offer.by
        return bool(self.allowed) and known and (self.with_base or not self.beyond)

    @property
    def step(self) -> Step:
        """What is to be done next."""
        if self.problem:
            return Step.WAIT
        if self.is_allowed:
            return Step.PUBLISH
        return Step.WAIT if self.digest else Step.PREPARE

    @property
    def is_due(self) -> bool:
        """Return whether ``carme-hub image publish`` has something to do."""
        return self.step is not Step.WAIT

    def judged(self, beyond: str) -> Wanted:
        """Return it with what is known now of the images below; an approval that did not know of it is void."""
        if beyond and self.allowed and not self.with_base:
            return replace(
                self, beyond=beyond, allowed="", void=f"What {self.allowed} has allowed does not count: {beyond}"
            )
        return replace(self, beyond=beyond)

    def prepared(self, digest: str, found: str) -> Wanted:
        """Return it with the digest that an administrator decides on."""
        return replace(self, digest=digest, found=found, **_DONE)

    def changed(self) -> Wanted:
        """Return it without an approval, since the files are others now."""
        void = f"Its files have changed since {self.allowed or 'then'} allowed it, so that does not count any more."
        return replace(self, digest="", found="", allowed="", with_base=False, void=void, **_DONE)

    def refused(self, why: str) -> Wanted:
        """Return it with why it is not published, for good."""
        return replace(self, problem=why[:1000], **_DONE)

    def put_off(self, why: str, now: float) -> Wanted:
        """Return it with why it could not be published now; each time it is tried again later."""
        pause = min(_PAUSE * 2.0 ** min(self.tries, 10), _LONGEST)
        return replace(self, waiting=why[:1000], tries=self.tries + 1, again=now + pause)

    def decided(self, by: str, *, with_base: bool) -> Wanted:
        """Return it as an administrator allows it."""
        return replace(self, allowed=by, with_base=with_base, problem="", void="")


#: It was tried, and there was an answer.
_DONE: dict[str, Any] = {"waiting": "", "tries": 0, "again": 0.0}


def words_of(wanted: Wanted) -> str:
    """Return what becomes of an offer that is wanted."""
    to = "everybody" if wanted.offer.to is To.EVERYBODY else f"group {wanted.offer.name}"
    if wanted.problem:
        return f"Not offered to {to}: {wanted.problem}"
    if wanted.waiting:
        return f"Not offered to {to} yet: {wanted.waiting}. That says nothing of the image, and it is tried again."
    if wanted.is_allowed:
        return f"To be offered to {to} as soon as it is unpacked and scanned."
    parts = [
        f"To be offered to {to}; an administrator has to allow it{'' if wanted.digest else ', once it is scanned'}."
    ]
    return " ".join([*parts, *filter(None, (wanted.void, wanted.beyond))])
