"""Whatever is asked in whatever order: the balance is what simple sums say, and never more is used than was given."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest
from forged_site import ADA, HOUR, Site, a100
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rig import postgres
from sqlalchemy import Engine

from carme_hub.accounting.admission import admit, extend, release
from carme_hub.accounting.credit_expiry import expire_all
from carme_hub.accounting.grants import grant
from carme_hub.accounting.settlement import settle
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Balance
from carme_hub.domain.sessions.session import SessionState
from carme_hub.store.ledger.sums import differences

_numbers = count(1)
_amounts = st.integers(1, 6 * GPU_HOUR)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), _amounts),
        st.tuples(st.just("admit"), st.integers(1, 4), st.integers(1, 2 * HOUR)),
        st.tuples(st.just("end"), st.integers(0, 5), st.floats(0, 1), st.sampled_from(["COMPLETED", "NODE_FAIL"])),
        st.tuples(st.just("extend"), st.integers(0, 5), st.integers(1, HOUR)),
        st.tuples(st.just("give-back"), st.integers(0, 5)),
        st.tuples(
            st.just("again"),
        ),
    ),
    max_size=25,
)


@dataclass
class Oracle:
    """The same in plain sums."""

    granted: int = 0
    used: int = 0
    held: dict[str, int] = field(default_factory=dict)

    @property
    def balance(self) -> Balance:
        return Balance(self.granted, self.used, sum(self.held.values()))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_steps)
def test_any_order_of_grants_starts_and_ends_adds_up(
    site: Site, engine: Engine, steps: list[tuple[object, ...]]
) -> None:
    account, oracle = f"account{next(_numbers)}", Oracle()
    context = site.ledger.context
    site.rows.clear()
    gpus: dict[str, int] = {}
    past = []

    def check() -> None:
        with context.store.reading("lab") as reads:
            found = reads.balance(account)
        assert found == oracle.balance
        with engine.connect() as connection:
            assert differences(connection) == []
        assert found.used + found.held <= found.granted

    for name, *what in steps:
        site.now += 1
        open_now = list(oracle.held)
        chosen = open_now[what[0] % len(open_now)] if open_now and name not in ("grant", "admit", "again") else ""
        if name == "grant":
            grant(context, account, what[0], key=f"k{next(_numbers)}", actor="root")
            oracle.granted += what[0]
        elif name == "admit":
            id, amount = f"s{next(_numbers)}", what[0] * what[1] * 1000
            fits = amount <= oracle.balance.left
            assert admit(context, id, ADA, a100(what[0], what[1], account), "", "").granted is fits
            if fits:
                oracle.held[id], gpus[id] = amount, what[0]
                site.session(id)
                site.session(id, job_id=next(_numbers), started=site.now, state=SessionState.RUNNING)
        elif name == "end" and chosen:
            length = int(oracle.held.pop(chosen) // (gpus[chosen] * 1000) * what[1])
            job = site.usage_of(chosen, site.rows[chosen].job_id, site.now, site.now + length, state=what[2])
            past.append(replace(job, account=account, gpus=(Gpus("a100", gpus[chosen]),)))
            site.now += length
            oracle.used += length * gpus[chosen] * 1000 if what[2] == "COMPLETED" else 0
            if what[2] != "COMPLETED":  # the job might come back, so the hub says that the session is over
                site.session(chosen, state=SessionState.ENDED, ended=site.now)
            settle(context, past, site.rows.values())
        elif name == "extend" and chosen:
            more = what[1] * gpus[chosen] * 1000
            fits = more <= oracle.balance.left
            assert extend(context, chosen, what[1], ADA, None).granted is fits
            oracle.held[chosen] += more if fits else 0
        elif name == "give-back" and chosen:
            assert release(context, chosen, "sbatch refused it", "carme-hub")
            del oracle.held[chosen]
        elif name == "again":
            assert not settle(context, past, site.rows.values())
        check()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@example(steps=[("grant", GPU_HOUR + 1), ("admit", 1, HOUR), ("again",)], ends=[1] * 3)
@given(steps=_steps, ends=st.lists(st.integers(1, 300), min_size=25, max_size=25))
def test_no_order_of_credits_that_expire_overdraws_an_account(
    site: Site, steps: list[tuple[object, ...]], ends: list[int]
) -> None:
    account, context = f"account{next(_numbers)}", site.ledger.context
    site.rows.clear()
    past = []
    gpus: dict[str, int] = {}
    for (name, *what), later in zip(steps, ends, strict=False):
        site.now += 60
        if name == "grant":
            expires = site.now + later if what[0] % 3 else 0
            grant(context, account, what[0], key=f"k{next(_numbers)}", actor="root", expires=expires, reason="course")
        elif name == "admit":
            id = f"s{next(_numbers)}"
            if admit(context, id, ADA, a100(what[0], what[1], account), "", "").granted:
                gpus[id] = what[0]
                site.session(id)
                site.session(id, job_id=next(_numbers), started=site.now, state=SessionState.RUNNING)
        elif name == "end" and gpus:
            id = list(gpus)[what[0] % len(gpus)]
            with context.store.reading("lab") as reads:
                limit = reads.open_holds([id])[id].seconds
            length = int(limit * what[1])
            job = site.usage_of(id, site.rows[id].job_id, site.now, site.now + length)
            past.append(replace(job, account=account, gpus=(Gpus("a100", gpus.pop(id)),)))
            site.now += length
            settle(context, past, site.rows.values())
        else:
            expire_all(context)
        with context.store.reading("lab") as reads:
            assert reads.balance(account).left >= 0


_PROCESS = """
import sys
sys.path[:0] = {paths!r}
from forged_site import ADA, Site, a100
from carme_hub.accounting.admission import admit
from carme_hub.store.engine import make_engine
from carme_hub.store.ledger.writes import LedgerStore
books = Site(LedgerStore(make_engine({url!r}))).ledger.context
print("ready", flush=True)
sys.stdin.readline()
for n in range({first}, {last}):
    print(n, admit(books, f"s{{n}}", ADA, a100(), "", "").granted, flush=True)
print("done", flush=True)
sys.stdin.readline()
"""


async def test_several_processes_are_granted_exactly_what_there_is_also_when_one_is_killed(
    site: Site, database_url: str
) -> None:
    await site.grant(10 * GPU_HOUR)
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    programs = [
        _PROCESS.format(paths=paths, url=database_url, first=first, last=first + 10) for first in range(0, 40, 10)
    ]
    running = [
        subprocess.Popen([sys.executable, "-c", each], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for each in programs
    ]
    for each in running:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in running:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    time.sleep(0.02)
    running[0].kill()
    for each in running:
        each.communicate("go\n", timeout=120)
    assert [each.returncode for each in running] == [-9, 0, 0, 0]
    granted = [(await site.ledger.admit(f"s{n}", ADA, a100())).granted for n in range(40)]
    assert sum(granted) == 10
    assert await site.left() == 0


def test_a_missing_postgresql_fails_with_the_name_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.Path, "glob", lambda *_: iter(()))
    with pytest.raises(postgres.PostgresMissing, match="apt-get install postgresql"):
        postgres.programs()
