"""The settings build what they describe, and say by name what is missing."""

from __future__ import annotations

import pytest
from traitlets import TraitError
from traitlets.config import Config

from carme_hub.errors import ConfigError
from carme_hub.slurm.cli import SlurmCli
from carme_hub.slurm.rest import RestSubmitter
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.slurm.submit import DirectSubmitter, SudoSubmitter


def build(**settings: object) -> SlurmCli:
    client = CarmeSlurm(config=Config({"CarmeSlurm": settings})).client()
    assert isinstance(client, SlurmCli)
    return client


def test_each_way_of_submitting() -> None:
    assert isinstance(build()._submitter, DirectSubmitter)
    assert isinstance(build(submit_via="sudo", submit_command=["/x"])._submitter, SudoSubmitter)
    rest = build(submit_via="rest", rest_url="unix:///x", token_command=["/t"])
    assert isinstance(rest._submitter, RestSubmitter)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"submit_via": "rest", "token_command": ["/t"]}, "rest_url"),
        ({"submit_via": "rest", "rest_url": "unix:///x"}, "token_command"),
        ({"submit_via": "sudo"}, "submit_command"),
    ],
)
def test_what_is_missing_is_named(settings: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        build(**settings)


def test_a_folder_must_be_absolute_and_a_way_must_exist() -> None:
    with pytest.raises(TraitError, match="absolute"):
        CarmeSlurm(slurm_prefix="slurm")
    with pytest.raises(TraitError):
        CarmeSlurm(submit_via="telnet")


def test_commands_are_called_by_absolute_path() -> None:
    client = build(slurm_prefix="/opt/slurm", slurm_conf="/etc/carme/slurm.conf")
    assert client._commands.path("squeue") == "/opt/slurm/bin/squeue"
    assert client._commands.environment()["SLURM_CONF"] == "/etc/carme/slurm.conf"


def test_the_watcher_has_the_intervals() -> None:
    settings = CarmeSlurm(fast_interval=0.5, slow_interval=7, command_timeout=4)
    watcher = settings.watcher(settings.client())
    assert (watcher.settings.fast_interval, watcher.settings.slow_interval) == (0.5, 7)
    assert watcher.settings.look_timeout == 8


def test_every_setting_says_what_it_is() -> None:
    for name, trait in CarmeSlurm.class_own_traits(config=True).items():
        assert len(trait.help) > 60, name
