"""Prices as Slurm prints them."""

from __future__ import annotations

import pytest
from forged_slurm import ForgedSlurm

from carme_hub.errors import ConfigError, SlurmUnreachable
from carme_hub.slurm.billing import BillingReader
from carme_hub.slurm.command import Commands

PARTITIONS = (
    "PartitionName=plain AllowGroups=ALL State=UP TRES=cpu=8,gres/gpu:a100=8\n"
    "PartitionName=big AllowGroups=ALL TRES=cpu=8 "
    "TRESBillingWeights=CPU=0.1234,Mem=0.25G,GRES/gpu=1.5,GRES/gpu:a100=2.25\n"
    "PartitionName=typed TRESBillingWeights=gres/gpu:a100=0\n"
)
QOS = "Name|UsageFactor\nnormal|1.000000\nlow|0.500000\nodd|name|2.000000\n"


def say(forged: ForgedSlurm, *, flags: str = "", partitions: str = PARTITIONS, qos: str = QOS) -> None:
    forged.say("scontrol", before=f"case \"$*\" in *config*) echo 'PriorityFlags           = {flags}';; esac")
    (forged.prefix / "scontrol" / "out").write_text(partitions)
    forged.say("sacctmgr", qos)


async def test_weights_of_gpus_are_added_up_as_slurm_does(commands: Commands, forged: ForgedSlurm) -> None:
    say(forged)
    prices = await BillingReader(commands).prices(["a100", "h100"])
    found = {p: [prices.factor(t, p) for t in ("a100", "h100", "gpu")] for p in ("plain", "big", "typed")}
    assert found == {"plain": [1000, 1000, 1000], "big": [3750, 1500, 1500], "typed": [0, 1000, 1000]}
    assert prices.factor("h100", "big", "low") == 750
    assert prices.factor("a100", "plain", "odd|name") == 2000


async def test_the_weight_of_shards_is_their_price_and_no_part_of_that_of_gpus(
    commands: Commands, forged: ForgedSlurm
) -> None:
    say(forged, partitions="PartitionName=p TRESBillingWeights=GRES/gpu=2,GRES/shard=0.25\nPartitionName=q\n")
    prices = await BillingReader(commands).prices(["a100"])
    assert [prices.factor(type_, "p") for type_ in ("a100", "shard")] == [2000, 250]
    assert prices.shard_factor({"": {"a100": 500}}, "p", "low") == 125
    assert prices.shard_factor({"": {"a100": 500}}, "q", "low") == 250


@pytest.mark.parametrize(
    ("weight", "factor", "price", "cheap"),
    [("gres/shard=0.0625", "0.5", 63, 32), ("gres/shard=0.125", "0.25", 125, 32)],
)
async def test_no_weight_of_shards_keeps_the_prices_of_gpus_from_being_read(
    weight: str, factor: str, price: int, cheap: int, commands: Commands, forged: ForgedSlurm
) -> None:
    weights = f"GRES/gpu=2,{weight},gres/shard:a100=0.0001"
    say(forged, partitions=f"PartitionName=p TRESBillingWeights={weights}\n", qos=f"Name|UsageFactor\nlow|{factor}\n")
    prices = await BillingReader(commands).prices(["a100"])
    assert (prices.factor("a100", "p"), prices.shard_factor({}, "p"), prices.shard_factor({}, "p", "low")) == (
        2000,
        price,
        cheap,
    )


async def test_with_max_tres_the_largest_weight_counts(commands: Commands, forged: ForgedSlurm) -> None:
    say(forged, flags="FAIR_TREE,MAX_TRES")
    prices = await BillingReader(commands).prices(["a100"])
    assert prices.factor("a100", "big") == 2250


@pytest.mark.parametrize(
    "changes",
    [
        {"qos": "Name|UsageFactor\nnormal|0.123400\n"},
        {"partitions": "PartitionName=p TRESBillingWeights=GRES/gpu=1.0005\n"},
        {"partitions": "PartitionName=p TRESBillingWeights=GRES/gpu=1.1G\n"},
        {"partitions": "PartitionName=p TRESBillingWeights=GRES/gpu=1.255\n", "qos": "Name|UsageFactor\nlow|0.5\n"},
    ],
)
async def test_what_cannot_be_counted_exactly_is_said(
    changes: dict[str, str], commands: Commands, forged: ForgedSlurm
) -> None:
    say(forged, **changes)
    with pytest.raises(ConfigError):
        await BillingReader(commands).prices(["a100"])


@pytest.mark.parametrize("changes", [{"qos": ""}, {"qos": "Name|UsageFactor\nhalf"}, {"partitions": "junk\n"}])
async def test_an_odd_answer_is_no_answer(changes: dict[str, str], commands: Commands, forged: ForgedSlurm) -> None:
    say(forged, **changes)
    with pytest.raises(SlurmUnreachable):
        await BillingReader(commands).prices(["a100"])


async def test_no_database_no_prices(commands: Commands, forged: ForgedSlurm) -> None:
    say(forged)
    forged.say("sacctmgr", "Name|UsageFactor\n", err="sacctmgr: connection refused")
    with pytest.raises(SlurmUnreachable):
        await BillingReader(commands).prices(["a100"])
