"""What is left of credits that expire, whatever was charged and moved to other accounts before."""

from __future__ import annotations

from carme_hub.domain.ledger.credits import expiry_key, remaining_credits
from carme_hub.domain.ledger.entries import Entry, Kind

EXPIRES = 1000.0


def grant(key: str, amount: int, at: float, expires: float = 0.0) -> Entry:
    """Return a grant; a negative one is a transfer to another account."""
    return Entry(key, Kind.GRANT, "c", "physics", amount, at, expires=expires, id=int(at))


LASTING, CREDIT = grant("lasting", 100, 1), grant("credit", 50, 2, EXPIRES)


def left(*more: Entry, draws: tuple[tuple[int, int], ...] = ()) -> int:
    """Return what is left of the credit at its end."""
    return remaining_credits([LASTING, CREDIT, *more], draws, 500.0)["credit"]


def test_usage_is_drawn_from_a_credit_before_what_lasts() -> None:
    assert left() == 50
    assert left(draws=((10, 20),)) == 30
    assert left(draws=((10, 20), (11, 40))) == 0


def test_a_transfer_is_drawn_from_what_lasts_until_nothing_of_it_is_left() -> None:
    transfers = [grant("first", -60, 3), grant("second", -60, 4), grant("third", -10, 5)]
    assert left(transfers[0]) == 50
    assert left(*transfers[:2]) == 30
    assert left(*transfers) == 20


def test_what_is_given_pays_a_debt_first() -> None:
    debt = ((0, 10),)  # used before anything was given
    assert remaining_credits([CREDIT], debt, 500.0) == {"credit": 40}
    assert remaining_credits([CREDIT], debt, 1500.0) == {"credit": 40}
    assert remaining_credits([CREDIT], ((1200, 30),), 1500.0) == {"credit": 50}  # used after its expiry


def test_the_first_correction_of_a_credit_has_no_number() -> None:
    assert expiry_key("grant:7") == "expiry:grant:7"
    assert [expiry_key("grant:7", part) for part in (0, 1, 2)] == [
        "expiry:grant:7",
        "expiry:grant:7:1",
        "expiry:grant:7:2",
    ]
