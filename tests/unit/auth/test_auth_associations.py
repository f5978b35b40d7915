"""The cache of associations: one query for all users, and an unanswered query changes nothing."""

from __future__ import annotations

import asyncio

import pytest
from auth_hub import SlurmThatCanFallSilent

from carme_hub.sessions import associations as module
from carme_hub.sessions.associations import AssociationCache, associations_of_cluster
from carme_hub.slurm.client import Association


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slurm() -> SlurmThatCanFallSilent:
    return SlurmThatCanFallSilent()


@pytest.fixture
def associations(slurm: SlurmThatCanFallSilent, clock: Clock) -> AssociationCache:
    return AssociationCache(slurm, clock=clock, time_limit=30)  # type: ignore[arg-type]


async def test_the_default_account_comes_first(associations: AssociationCache) -> None:
    assert associations.accounts_of("alice") == ()
    assert not associations.known
    assert await associations.refresh()
    assert associations.accounts_of("alice") == ("physics", "chem")
    assert associations.accounts_of("mallory") == ()


async def test_many_at_once_ask_once(
    associations: AssociationCache, slurm: SlurmThatCanFallSilent, clock: Clock
) -> None:
    await asyncio.gather(*(associations.refresh() for _ in range(50)))
    await associations.refresh()
    assert slurm.asked == 1
    clock.now = 61
    await associations.refresh()
    assert slurm.asked == 2


async def test_nobody_waits_for_an_answer_that_is_still_good(
    associations: AssociationCache, slurm: SlurmThatCanFallSilent, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await associations.refresh()
    answering, answer = asyncio.Event(), slurm.associations

    async def slow() -> tuple[Association, ...]:
        await answering.wait()
        return await answer()

    monkeypatch.setattr(slurm, "associations", slow)
    clock.now = 50
    assert await asyncio.wait_for(associations.refresh(), 5)
    assert await asyncio.wait_for(associations.refresh(), 5)
    assert associations.age == 50
    answering.set()
    await asyncio.sleep(0.01)
    assert (slurm.asked, associations.age) == (2, 0)  # one question for both
    slurm.silent = True
    clock.now = 105
    assert await associations.refresh()
    await asyncio.sleep(0.01)
    assert await associations.refresh()  # Slurm has fallen silent, and what is known still counts
    clock.now = 111
    assert not await associations.refresh()


async def test_silence_keeps_what_was_known_and_is_not_asked_again_at_once(
    associations: AssociationCache, slurm: SlurmThatCanFallSilent, clock: Clock
) -> None:
    await associations.refresh()
    slurm.silent = True
    clock.now = 100
    assert not await associations.refresh()
    assert not await associations.refresh()
    assert slurm.asked == 2
    assert associations.accounts_of("bob") == ("chem",)
    slurm.silent = False
    clock.now = 111
    assert await associations.refresh()


async def test_a_slow_answer_is_none(
    associations: AssociationCache, slurm: SlurmThatCanFallSilent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> tuple[Association, ...]:
        await asyncio.sleep(60)
        return ()

    monkeypatch.setattr(slurm, "associations", never)
    associations.time_limit = 0.05
    assert not await associations.refresh()
    assert not associations.known


async def test_a_user_who_lost_an_account_has_it_no_more(
    associations: AssociationCache, slurm: SlurmThatCanFallSilent, clock: Clock
) -> None:
    await associations.refresh()
    slurm.rows = [row for row in slurm.rows if row.user != "bob"]
    clock.now = 100
    await associations.refresh()
    assert associations.accounts_of("bob") == ()


async def test_an_answer_without_anybody_is_not_believed(
    associations: AssociationCache, slurm: SlurmThatCanFallSilent, clock: Clock
) -> None:
    await associations.refresh()
    slurm.rows = []
    clock.now = 100
    assert not await associations.refresh()
    assert associations.accounts_of("bob") == ("chem",)


async def test_whoever_gives_up_takes_the_answer_from_nobody(
    associations: AssociationCache, slurm: SlurmThatCanFallSilent
) -> None:
    first = asyncio.create_task(associations.refresh())
    await asyncio.sleep(0)
    second = asyncio.create_task(associations.refresh())
    await asyncio.sleep(0)
    first.cancel()
    assert await second
    assert slurm.asked == 1


async def test_a_hub_has_one_book_whoever_holds_a_client() -> None:
    one, two = SlurmThatCanFallSilent(), SlurmThatCanFallSilent()
    one.cluster = two.cluster = "the same"
    assert associations_of_cluster(one) is associations_of_cluster(two)  # type: ignore[arg-type]
    two.cluster = "another"
    assert associations_of_cluster(one) is not associations_of_cluster(two)  # type: ignore[arg-type]


class BookThatCounts(AssociationCache):
    """Notes how often it was asked about a user."""

    looked = 0

    def associations_of(self, user: str) -> tuple[Association, ...]:
        self.looked += 1
        return super().associations_of(user)


async def test_who_coordinates_an_account_is_known_without_going_through_everybody(
    slurm: SlurmThatCanFallSilent, clock: Clock
) -> None:
    slurm.rows = [Association(f"user{n}", "bio", coordinator=n in (7, 3)) for n in range(50)]
    slurm.rows += [Association("user3", "bio", partition="gpu", coordinator=True), Association("user9", "chem")]
    associations = BookThatCounts(slurm, clock=clock)  # type: ignore[arg-type]
    assert associations.coordinators_of("bio") == ()
    await associations.refresh()
    assert [associations.coordinators_of(account) for account in ("bio", "chem", "art")] == [("user3", "user7"), (), ()]
    assert associations.looked == 0
    slurm.rows = [Association("user4", "bio", coordinator=True)]
    clock.now = 100
    await associations.refresh()
    assert associations.coordinators_of("bio") == ("user4",)


def test_a_site_may_use_the_old_name_of_the_cache_and_is_warned() -> None:
    with pytest.warns(DeprecationWarning, match="AssociationCache"):
        found = module.AssociationBook
    assert found is AssociationCache
    with pytest.raises(AttributeError, match="AssociationBoook"):
        _ = module.AssociationBoook
