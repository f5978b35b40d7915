"""Prices are exact, or they are refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.ledger.prices import Prices, shard_parts, thousandths
from carme_hub.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1000),
        (3, 3000),
        ("2.5", 2500),
        ("0.125", 125),
        ("1.000000", 1000),
        ("0", 0),
        (" 1.5 ", 1500),
        ("2.", 2000),
    ],
)
def test_a_price_is_read_exactly(text: object, value: int) -> None:
    assert thousandths(text, "x") == value


@pytest.mark.parametrize("text", ["0.1234", "-1", "1e3", "", "two", "½", "1,5", 2.5, True, None, "inf"])
def test_what_is_no_exact_price_is_refused_by_name(text: object) -> None:
    with pytest.raises(ConfigError, match="gpu h100"):
        thousandths(text, "gpu h100")


def test_type_partition_and_qos_are_multiplied_and_what_is_not_named_costs_one() -> None:
    prices = Prices.from_config({"gpu": {"h100": "2.5"}, "partition": {"night": "0.5"}, "qos": {"low": "0.2"}})
    assert prices.factor("h100") == 2500
    assert prices.factor("h100", "night", "low") == 250
    assert prices.factor("a100", "night") == 500
    assert prices.factor("a100", "day", "normal") == 1000
    assert prices.lowest_factor(["h100", "a100"]) == 100
    assert Prices().factor("a100") == Prices().lowest_factor([]) == 1000


def test_the_price_of_a_qos_counts_however_its_name_is_written() -> None:
    prices = Prices.from_config({"qos": {"Low": "0.2"}})
    assert [prices.factor("a100", "", name) for name in ("low", "Low", "LOW", "high")] == [200, 200, 200, 1000]
    with pytest.raises(ConfigError, match="names low twice"):
        Prices.from_config({"qos": {"Low": "0.2", "low": "0.5"}})


def test_a_price_for_one_partition_counts_in_place_of_the_general_one() -> None:
    prices = Prices(gpu={"a100": 2000}, gpu_in={"big": {"a100": 3000}})
    assert (prices.factor("a100"), prices.factor("a100", "big"), prices.factor("h100", "big")) == (2000, 3000, 1000)


@pytest.mark.parametrize(
    "config",
    [
        {"node": {"a": "1"}},
        {"gpu": ["a100"]},
        {"gpu": {"a100": 0.5}},
        {"gpu": {"a100": "1.25"}, "qos": {"low": "0.25"}, "partition": {"p": "0.5"}},
    ],
)
def test_a_config_that_cannot_be_counted_exactly_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Prices.from_config(config)


def test_the_refusal_names_what_does_not_multiply() -> None:
    with pytest.raises(ConfigError, match="GPU type a100, QOS low"):
        Prices(gpu={"a100": 1250}, qos={"low": 250 + 1})


def node(name: str, *partitions: str, gpus: dict[str, int], shards: dict[str, int] | None = None) -> Node:
    return Node(name, "idle", usable=True, partitions=partitions, gpus=gpus, shards=shards or {})


def test_a_shard_is_the_part_of_a_gpu_that_the_nodes_say_rounded_up_and_the_largest_where_they_differ() -> None:
    nodes = [
        node("n1", "small", "all", gpus={"a100": 4}, shards={"a100": 16}),
        node("n2", "large", "all", gpus={"a100": 2}, shards={"gpu": 6}),
        node("n3", "all", gpus={"h100": 4}),
        node("n4", "odd", gpus={"gpu": 4}, shards={"gpu": 2}),
    ]
    parts = shard_parts(nodes)
    assert parts["small"] == {"a100": 250}
    assert parts["large"] == parts["all"] == {"a100": 334}
    assert parts["odd"] == {"gpu": 1000}
    assert parts[""] == {"a100": 334, "gpu": 1000}
    assert shard_parts([node("n3", "all", gpus={"h100": 4}), node("n5", gpus={}, shards={"gpu": 4})]) == {}


def test_a_shard_costs_its_part_of_the_gpu_unless_it_has_a_price_of_its_own() -> None:
    parts = {"": {"a100": 250, "h100": 500}, "small": {"a100": 125}}
    prices = Prices(gpu={"h100": 2500}, qos={"low": 500}, partition={"night": 500})
    assert prices.shard_factor(parts, "small") == 125
    assert prices.shard_factor(parts, "elsewhere") == 1250  # of the dearest GPU
    assert prices.shard_factor(parts, "small", "low") == 63  # 62.5, and no price is ever refused for it
    assert prices.shard_factor(parts, "night") == 625
    assert Prices(gpu={"shard": 200}, qos={"low": 500}).shard_factor(parts, "small", "low") == 100
    assert prices.shard_factor({}, "small", "low") == 500


def test_a_named_price_of_a_shard_is_rounded_up_and_never_refused_for_its_decimals() -> None:
    prices = Prices.from_config({"gpu": {"shard": "0.125"}, "qos": {"low": "0.25"}})
    assert (prices.shard_factor({}), prices.shard_factor({}, "", "low")) == (125, 32)  # 31.25
    assert Prices.from_config({"gpu": {"shard": "0.0625"}}).shard_factor({}) == 63
    assert thousandths("0.1250001", "x", round_up=True) == 126
    with pytest.raises(ConfigError, match="GPU type a100, QOS low"):
        Prices.from_config({"gpu": {"shard": "0.125", "a100": "1.125"}, "qos": {"low": "0.25"}})
    with pytest.raises(ConfigError, match="shard"):
        Prices.from_config({"gpu": {"shard": "-0.125"}})


@given(st.integers(1, 64), st.integers(1, 200), st.integers(0, 4000))
def test_all_shards_of_a_gpu_never_cost_less_than_the_gpu(gpus: int, shards: int, price: int) -> None:
    parts = shard_parts([node("n", "p", gpus={"a100": gpus}, shards={"a100": max(gpus, shards)})])
    assert Prices(gpu={"a100": price}).shard_factor(parts, "p") * max(gpus, shards) >= gpus * price


_FACTORS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 4000), max_size=3)


@given(_FACTORS, _FACTORS, _FACTORS)
def test_whatever_is_accepted_is_exact(gpu: dict[str, int], partition: dict[str, int], qos: dict[str, int]) -> None:
    try:
        prices = Prices(gpu, partition, qos)
    except ConfigError:
        return
    for g in "abcd":
        for p in "abcd":
            for q in "abcd":
                exact = Fraction(gpu.get(g, 1000) * partition.get(p, 1000) * qos.get(q, 1000), 10**6)
                assert prices.factor(g, p, q) == exact
