"""The command line of one site, run within the test's process."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Application

from carme_hub.accounting.ledger import Ledger
from carme_hub.cli.quotas.grants import GrantApp
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.policy import Policy
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import Filter, LedgerStore


class CommandLine:
    """The command line of one site, run in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.file = folder / "jupyterhub_config.py"
        self.database = folder / "state" / "carme-hub.sqlite"
        self.url = f"sqlite:///{self.database}"
        self.file.write_text(
            "from carme_hub import configure\n"
            "c = get_config()\n"
            f"configure(c, state_folder={str(folder / 'state')!r}, quotas=True)\n"
            f"c.CarmeSlurm.slurm_prefix = {str(folder)!r}\n"
            "c.CarmeSlurm.cluster = 'lab'\n"
            "c.CarmeQuotas.price_of_gpu_hour = '0.5'\n"
            "c.CarmeQuotas.policy = {'zone': 'Europe/Berlin', 'quotas': [\n"
            "    {'id': 'week', 'user': '*', 'gpu_time': 20, 'window': 'week'}]}\n"
        )

    def run(self, app: type[Application], *argv: str) -> tuple[int, str, str]:
        """Run a command; return its exit status, stdout and stderr."""
        command = app()

        def initialize_and_start() -> None:
            command.initialize([*argv, "--config", str(self.file)])
            command.start()

        with pytest.raises(SystemExit) as ended:
            initialize_and_start()
        output = self._capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    def json(self, app: type[Application], *argv: str) -> Any:
        return json.loads(self.run(app, *argv, "--json")[1])

    def grant(self, *argv: str) -> tuple[int, str, str]:
        return self.run(GrantApp, *argv, "--no-check")

    def used(self, *usages: Usage) -> None:
        """Charge usage to the ledger."""
        engine = CarmeStore(url=self.url).open()
        ledger = Ledger(LedgerStore(engine), "lab", policy=Policy, factor=lambda *_: 1000, clock=time.time)
        asyncio.run(ledger.settle(usages, sessions=()))
        engine.dispose()

    def statement(self) -> list[Any]:
        engine = CarmeStore(url=self.url).open()
        with LedgerStore(engine).reading("lab") as reads:
            found = reads.statement(Filter())
        engine.dispose()
        return found


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.delenv("SUDO_USER", raising=False)
    (tmp_path / "state").mkdir(mode=0o700)
    found = CommandLine(tmp_path, capsys)
    CarmeStore(url=found.url).open().dispose()
    return found
