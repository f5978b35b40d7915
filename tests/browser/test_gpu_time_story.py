"""The story of GPU time: two hours left, a refusal, its alternative, an early stop, a refund, more time, a report."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from balances import set_balance, sum_of
from playwright.sync_api import Locator, Page, expect
from rig.books import disagreements
from rig.hub import Hub, wait_for
from windows import SCREENSHOTS, ready, screenshots

from carme_hub.domain.wording import hours
from carme_hub.sandbox.demo import DEFAULT_POLICY
from carme_hub.services.quotas.application import view

SERVICE = "/services/quotas/"
ZONE = "Europe/Berlin"
GPU_HOUR = 3_600_000
LEFT = 2 * GPU_HOUR
#: Whoever uses the account needs GPU time that was granted to it; its owner may grant more, in every repeat of this.
POLICY = {
    "zone": ZONE,
    "currency": "EUR",
    "quotas": [{"id": "grants", "account": "*", "needs_grant": True, "owners_approve": 500}],
}


@pytest.fixture
def two_hours(hub: Hub) -> Iterator[None]:
    """Account teaching has two GPU-hours left, to the second, whatever was granted and used before."""
    hub.wait_settled()
    hub.demo.set_policy(POLICY)
    set_balance(hub, "teaching", LEFT, "The course “Deep learning”")
    yield
    hub.demo.set_policy(DEFAULT_POLICY)


def choose(page: Page, hub: Hub, gpus: int, minutes: int) -> Locator:
    """Choose A100 on account teaching in the form, and return the card."""
    page.goto(f"{hub.demo.url}/hub/spawn/alice")
    page.get_by_role("radio", name=re.compile("A100")).check()
    page.get_by_label("Account to charge").locator("visible=true").select_option("teaching")
    page.get_by_label("Virtual GPUs").locator("visible=true").select_option(str(gpus))
    page.get_by_label("Time limit").locator("visible=true").select_option(str(minutes))
    return page.locator('.carme-profile[data-profile="a100"]')


def card_of(page: Page, account: str) -> Locator:
    heading = page.get_by_role("heading", name=f"Account {account}")
    return page.locator("section.card").filter(has=heading)


def start(page: Page) -> None:
    """Press Start and wait until the lab answers."""
    page.get_by_role("button", name=re.compile("^Start")).first.click()
    page.wait_for_url("**/user/alice/lab**", timeout=90_000)
    page.locator(".jp-LauncherCard, .jp-NotebookPanel").first.wait_for(timeout=90_000)


def statement(page: Page, hub: Hub) -> list[dict[str, str]]:
    """Return the statement as CSV from the page."""
    answer = page.request.get(f"{hub.demo.url}{SERVICE}statement.csv")
    assert answer.ok
    return list(csv.DictReader(io.StringIO(answer.text())))


def seconds_in_slurm(hub: Hub, account: str) -> int:
    """Return the GPU-seconds of an account this month by ``sacct -D``, without our code."""
    month = datetime.now(ZoneInfo(ZONE)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    words = ["sacct", "-D", "-X", "-a", "-n", "-P", "-A", account, "-S", f"{month.astimezone():%Y-%m-%dT%H:%M:%S}"]
    text = hub.cluster.run(*words, "-o", "ElapsedRaw,AllocTRES").stdout
    found = (line.split("|") for line in text.splitlines())
    return sum(int(elapsed) * int(gpus[1]) for elapsed, tres in found if (gpus := re.search(r"gres/gpu=(\d+)", tres)))


def test_a_student_with_two_hours_left_finds_the_way_and_the_report_adds_up(
    hub: Hub, two_hours: None, people: Callable[[str], Page]
) -> None:
    mine, home = f"{hub.demo.url}{SERVICE}", f"{hub.demo.url}/hub/home"
    alice = people("alice")

    # She sees the balance on the page of GPU time and in the form.
    alice.goto(mine)
    expect(card_of(alice, "teaching").get_by_text("2 h left")).to_be_visible()
    screenshots(alice, "story-1-two-hours-left")
    card = choose(alice, hub, 1, 60)
    cost = card.locator(".carme-cost")
    expect(cost).to_contain_text("Costs up to 1 GPU-hour of teaching; 2 left before, 1 after.")
    screenshots(alice, "story-2-form", at=cost)

    # 4 × a100 × 1 h is refused, with the reason and the largest choice that would be granted.
    choose(alice, hub, 4, 60)
    expect(cost).to_contain_text("Account teaching has 2 GPU-hours left, and this needs 4.")
    expect(cost).to_contain_text("At most 4 × virtual a100 for 30 min would be granted now.")
    screenshots(alice, "story-3-too-much", at=cost)
    alice.get_by_role("button", name=re.compile("^Start")).first.click()
    expect(alice.get_by_role("alert")).to_contain_text("Account teaching has 2 GPU-hours left, and this needs 4.")
    screenshots(alice, "story-4-refused", at=alice.get_by_role("alert"))
    assert hub.jobs() == []
    assert sum_of(hub, "account = 'teaching'") == LEFT, "a refused start holds nothing"

    # One click fills in the offer; the lab answers.
    cost.get_by_role("link", name="Take 4 × virtual a100 for 30 min instead").click()
    expect(alice.get_by_label("Time limit").locator("visible=true")).to_have_value("30")
    expect(alice.get_by_label("Virtual GPUs").locator("visible=true")).to_have_value("4")
    expect(cost).to_contain_text("Costs up to 2 GPU-hours of teaching; 2 left before, 0 after.")
    expect(alice.get_by_role("alert")).to_have_count(0)
    screenshots(alice, "story-5-offered-choice-taken", at=cost)
    start(alice)
    alice.screenshot(path=SCREENSHOTS / "story-6-lab-1280.png")

    # All of it is held, so the time line cannot give more, and says so.
    alice.goto(home)
    line = alice.locator(".carme-time")
    expect(line).to_contain_text("Your server has time until")
    screenshots(alice, "story-7-home", at=line)
    line.get_by_role("button", name="+ 30 min").click()
    expect(line.get_by_role("status")).to_contain_text("Account teaching has no GPU time left, and this needs 2 more.")
    screenshots(alice, "story-8-no-more-time", at=line)
    alice.goto(mine)
    expect(card_of(alice, "teaching").get_by_text("2 h held")).to_be_visible()
    screenshots(alice, "story-9-held")

    # She stops early, and what she did not use comes back.
    alice.goto(home)
    ready(alice)
    alice.get_by_role("link", name="Stop My Server").or_(alice.get_by_role("button", name="Stop My Server")).click()
    expect(alice.get_by_text("Start My Server")).to_be_visible(timeout=60_000)
    wait_for(lambda: sum_of(hub, "kind in ('hold', 'release')") == 0, 60, "the hold to come back")
    session = statement(alice, hub)[0]["session"]
    lines = {row["kind"]: row for row in statement(alice, hub) if row["session"] == session}
    assert set(lines) == {"hold", "charge", "release"}
    assert Decimal(lines["hold"]["gpu_hours"]) == -2
    assert Decimal(lines["release"]["gpu_hours"]) == 2
    seconds = seconds_between(lines["charge"]["start"], lines["charge"]["end"])
    used = 4 * seconds * 1000
    assert sum_of(hub, f"session = '{session}'") == -used
    assert sum_of(hub, "account = 'teaching'") == LEFT - used
    alice.goto(mine)
    left = f"{hours(LEFT - used)} h left"
    expect(card_of(alice, "teaching").get_by_text(left)).to_be_visible()
    expect(card_of(alice, "teaching").get_by_text("0 h held")).to_be_visible()
    expect(alice.get_by_text("100 %")).to_have_count(0)  # it was told while all was held, and is so no more
    screenshots(alice, "story-10-given-back")
    alice.get_by_role("link", name=f"session {session[:8]}").first.click()
    expect(alice.get_by_text(f"It cost {view.hours(used)}")).to_be_visible()
    screenshots(alice, "story-11-session")

    # She requests more; the teacher, who owns the account, grants it.
    alice.goto(mine)
    asks = card_of(alice, "teaching")
    asks.get_by_text("Ask for more GPU time").click()
    asks.get_by_label("GPU-hours").fill("10")
    asks.get_by_label("Reason", exact=True).fill("Training the last model of my thesis")
    screenshots(alice, "story-12-ask", at=asks)
    asks.get_by_role("button", name="Ask").click()
    expect(asks).to_contain_text("You asked for 10 h")
    tina = people("tina")
    tina.goto(mine)
    tina.get_by_role("link", name="My accounts").click()
    screenshots(tina, "story-13-teachers-account")
    asked = tina.locator("li.card").filter(has_text="Training the last model of my thesis")
    expect(asked).to_contain_text("alice asks for 10 h for account teaching")
    expect(asked.get_by_label("Taken from")).to_contain_text("owners' share: 500")
    screenshots(tina, "story-14-teacher")
    asked.get_by_role("button", name="Approve").click()
    expect(tina.get_by_role("heading", name="Approve this request?")).to_be_visible()
    screenshots(tina, "story-15-approve")
    tina.get_by_role("button", name="Approve and grant 10 h").click()
    expect(tina.get_by_text("10 h granted: the request of alice")).to_be_visible()
    screenshots(tina, "story-16-approved")

    # The same choice is possible now.
    alice.goto(mine)
    before = LEFT - used + 10 * GPU_HOUR
    expect(card_of(alice, "teaching").get_by_text(f"{hours(before)} h left")).to_be_visible()
    expect(alice.get_by_text(re.compile("by tina: .*Training the last model")).first).to_be_visible()
    screenshots(alice, "story-17-more")
    choose(alice, hub, 4, 60)
    words = f"Costs up to 4 GPU-hours of teaching; {hours(before)} left before"
    expect(cost).to_contain_text(words)
    screenshots(alice, "story-18-possible-now", at=cost)
    start(alice)
    hub.stop_server("alice")
    wait_for(lambda: sum_of(hub, "kind in ('hold', 'release')") == 0, 60, "the second hold to come back")

    # The administrator's report, the statement and Slurm's own accounting say the same.
    ada = people("ada")
    ada.goto(f"{mine}administration/report")
    row = ada.get_by_role("row").filter(has=ada.get_by_role("rowheader", name="teaching"))
    in_slurm = seconds_in_slurm(hub, "teaching")
    charged = -sum_of(hub, "account = 'teaching' and kind = 'charge'")
    assert charged == 1000 * in_slurm
    expect(row).to_contain_text(f"{in_slurm / 3600:.2f}".rstrip("0").rstrip("."))
    screenshots(ada, "story-19-report")
    answer = ada.request.get(f"{mine}administration/report.csv?by=account")
    report = {each["account"]: each for each in csv.DictReader(io.StringIO(answer.text()))}
    assert Decimal(report["teaching"]["gpu_hours"]) == round(Decimal(in_slurm) / 3600, 3)
    wait_for(lambda: not disagreements(hub), 30, "every job to be charged as Slurm has it")


def seconds_between(start: str, end: str) -> int:
    """Return the seconds between two moments of a statement."""
    first, last = (datetime.fromisoformat(each) for each in (start, end))
    return int((last - first).total_seconds())
