"""The settings build what they describe, and say by name what is missing."""

from __future__ import annotations

import pytest
from forged_pyslurm import ForgedPyslurm
from forged_slurm import ForgedSlurm
from traitlets import TraitError
from traitlets.config import Config

from carme_hub.errors import ConfigError, SlurmUnreachable
from carme_hub.slurm.cli.client import SlurmCli
from carme_hub.slurm.pyslurm.client import ReservationsNative, SlurmNative
from carme_hub.slurm.reservations import ReservationsCli
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.slurm.submit.slurmrestd import RestSubmitter
from carme_hub.slurm.submit.submitters import DirectSubmitter, SudoSubmitter


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
    assert watcher.settings.poll_timeout == 8


def test_every_setting_says_what_it_is() -> None:
    for name, trait in CarmeSlurm.class_own_traits(config=True).items():
        assert len(trait.help) > 60, name


def test_slurm_is_asked_by_commands_unless_pyslurm_is_wanted(forged: ForgedSlurm, library: ForgedPyslurm) -> None:
    assert type(build()) is SlurmCli
    assert type(CarmeSlurm().reservations()) is ReservationsCli
    settings = CarmeSlurm(ask_via="pyslurm", slurm_prefix=str(forged.prefix), submit_via="sudo", submit_command=["/x"])
    client, reservations = settings.client(), settings.reservations()
    assert isinstance(client, SlurmNative)
    assert isinstance(client._submitter, SudoSubmitter)  # who submits is another question
    assert isinstance(reservations, ReservationsNative)
    assert client._controller is reservations._controller  # one process for both


def test_without_pyslurm_the_hub_does_not_start_and_says_how_to_get_it(forged: ForgedSlurm) -> None:
    forged.release("25.11.7")
    with pytest.raises(ConfigError, match=r"not installed here: pip install 'carme-hub\[pyslurm\]'"):
        build(ask_via="pyslurm", slurm_prefix=str(forged.prefix))


def test_pyslurm_and_commands_of_another_release_do_not_start_the_hub(
    forged: ForgedSlurm, library: ForgedPyslurm
) -> None:
    forged.release("22.05.8")
    with pytest.raises(
        ConfigError, match=r"pyslurm 25.11 fits Slurm 25.11 only, and the commands here are of Slurm 22.05"
    ):
        build(ask_via="pyslurm", slurm_prefix=str(forged.prefix))


async def test_a_slurm_that_is_silent_keeps_no_hub_from_starting_and_is_not_asked_before_its_release_is_known(
    forged: ForgedSlurm, library: ForgedPyslurm
) -> None:
    forged.say("scontrol", err="scontrol: fatal: Could not establish a configuration source", code=1)
    client = build(ask_via="pyslurm", slurm_prefix=str(forged.prefix))
    assert isinstance(client, SlurmNative)
    with pytest.raises(SlurmUnreachable, match=r"scontrol --version: .*configuration source"):
        await client.snapshot()
    assert client._controller.pid is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ImportError('libslurmfull.so: cannot open shared object file')", "cannot be loaded: .*libslurmfull.so"),
        ("__version__ = '26.5.0'", "pyslurm 26.5.0 was not tried, 25.11 was"),
        ("import os; os.kill(os.getpid(), 11)", "cannot be loaded: exit status -11"),
    ],
)
def test_a_pyslurm_that_cannot_be_used_is_named_at_start_up(
    code: str, words: str, forged: ForgedSlurm, library: ForgedPyslurm
) -> None:
    (library.folder / "pyslurm" / "__init__.py").write_text(code)
    with pytest.raises(ConfigError, match=words):
        build(ask_via="pyslurm", slurm_prefix=str(forged.prefix))
