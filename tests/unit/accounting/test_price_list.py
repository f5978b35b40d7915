"""Prices come from the settings, or from Slurm by way of the service; nothing is priced by guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PRICES, SHARDS, NoPrice, PriceList
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.ledger.prices import Prices
from carme_hub.domain.quotas.policy import Policy
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore

MAX_PARTS = {"": {"a100": 250}, "gpu": {"a100": 250}}
SAID = Prices(gpu_in={"gpu": {"a100": 2500}}, qos={"low": 500})


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    store = LedgerStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open())
    return Ledger(store, "lab", policy=Policy, factor=lambda *_: 1000, clock=lambda: 1000.0)


async def test_the_settings_prices_stay_whatever_slurm_was_asked_before(ledger: Ledger) -> None:
    await PriceList(CarmeQuotas(prices_from="slurm")).store(ledger, SAID)
    own = PriceList(CarmeQuotas(prices={"gpu": {"a100": "1.5"}}))
    await own.load(ledger)
    assert own.factor("a100", "gpu", "low") == 1500


async def test_the_hub_knows_what_the_service_has_read_and_refuses_before_that(ledger: Ledger) -> None:
    service, hub = (PriceList(CarmeQuotas(prices_from="slurm")) for _ in range(2))
    await hub.load(ledger)
    with pytest.raises(NoPrice, match="not known yet"):
        hub.factor("a100")
    await service.store(ledger, SAID)
    await hub.load(ledger)
    assert (hub.factor("a100", "gpu"), hub.factor("a100", "gpu", "low"), hub.factor("h100")) == (2500, 1250, 1000)


async def test_the_same_prices_are_noted_once_through_restarts(ledger: Ledger) -> None:
    for _ in range(3):
        await PriceList(CarmeQuotas(prices_from="slurm")).store(ledger, SAID)
    first = await ledger.note(PRICES)
    await PriceList(CarmeQuotas(prices_from="slurm")).store(ledger, Prices(gpu={"a100": 3000}))
    second = await ledger.note(PRICES)
    assert first is not None
    assert second is not None
    assert second.id == first.id + 1


async def test_the_hub_prices_shards_as_the_service_has_seen_the_nodes(ledger: Ledger) -> None:
    service, hub = (PriceList(CarmeQuotas(prices={"gpu": {"a100": "2"}})) for _ in range(2))
    await hub.load(ledger)
    assert hub.factor("shard", "gpu") == 1000
    await service.store_shards(ledger, MAX_PARTS)
    await hub.load(ledger)
    assert hub.factor("shard", "gpu") == service.factor("shard", "gpu") == 500
    await service.store_shards(ledger, {})  # the last shards were taken away, what ran on them is still charged
    assert service.factor("shard", "gpu") == 500


async def test_the_parts_are_noted_once_through_restarts(ledger: Ledger) -> None:
    for _ in range(3):
        await PriceList(CarmeQuotas()).store_shards(ledger, MAX_PARTS)
    first = await ledger.note(SHARDS)
    await PriceList(CarmeQuotas()).store_shards(ledger, {"": {"a100": 125}})
    second = await ledger.note(SHARDS)
    assert first is not None
    assert second is not None
    assert second.id == first.id + 1


async def test_a_price_that_the_site_names_for_shards_stays(ledger: Ledger) -> None:
    prices = PriceList(CarmeQuotas(prices={"gpu": {"shard": "0.3"}, "qos": {"low": "0.5"}}))
    await prices.store_shards(ledger, MAX_PARTS)
    await prices.load(ledger)
    assert (prices.factor("shard"), prices.factor("shard", "gpu", "low")) == (300, 150)


async def test_prices_from_slurm_hold_for_shards_too(ledger: Ledger) -> None:
    prices = PriceList(CarmeQuotas(prices_from="slurm"))
    await prices.store_shards(ledger, MAX_PARTS)
    with pytest.raises(NoPrice):
        prices.factor("shard")
    await prices.store(ledger, Prices(gpu_in={"gpu": {"shard": 100}, "big": {"a100": 3000}}))
    assert [prices.factor("shard", where) for where in ("gpu", "big")] == [100, 750]
