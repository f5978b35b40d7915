"""A hub that says what a companion would cost, as a test wants it."""

from __future__ import annotations

from carme_hub.training.session.companions import Quote


class HubThatQuotes:
    """Answers questions about companions, and notes the last."""

    def __init__(self, answer: Quote | Exception) -> None:
        self.answer, self.asked = answer, {}

    def quote(self, **asked: int) -> Quote:
        self.asked = asked
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
