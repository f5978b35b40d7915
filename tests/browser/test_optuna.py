"""A sweep is on Optuna's page while it grows, which the launcher opens; its page works below the session's path."""

from __future__ import annotations

import re
import uuid

from playwright.sync_api import BrowserContext, Response, expect
from rig.hub import Hub
from rig.training import Lab
from windows import PHONE, log_in, open_app, screenshot

NAME = f"study-{uuid.uuid4().hex[:8]}"
SWEEP = f"""%%distributed -n 2 --gpus-per-task 0 --time 10m --name {NAME} --detach
import time
import optuna
from carme_hub.training import sweeps

def objective(trial):
    x, kind = trial.suggest_float("x", -10, 10), trial.suggest_categorical("kind", ["a", "b"])
    for step in range(1, 6):
        time.sleep(0.1)
        trial.report(x * x + 1 / step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x * x

sweeps.optimize(sweeps.open_study("{NAME}"), objective, trials=40)
"""


def test_a_sweep_is_on_optunas_page_while_it_grows(hub: Hub, window: BrowserContext) -> None:
    lab = Lab(hub, "tina", gpus=1, cpus=2, memory_gib=6, time_minutes=60)
    lab.check_in_thread("%load_ext carme_hub.training")
    lab.check_in_thread(SWEEP, 150)
    page = window.new_page()
    log_in(page, hub, "tina", "home")
    board = open_app(page, hub, "tina", "Optuna")
    wrong: list[str] = []

    def note(answer: Response) -> None:
        if answer.status >= 400:
            wrong.append(f"{answer.status} {answer.request.method} {answer.url}")

    board.on("response", note)
    board.wait_for_url(f"{hub.demo.url}/user/tina/optuna/dashboard", timeout=120_000)
    screenshot(board, "optuna-studies")
    board.get_by_text(NAME).first.click(timeout=60_000)
    board.wait_for_url(re.compile(r"/user/tina/optuna/dashboard/studies/\d+"))
    expect(board.get_by_role("heading", name="Intermediate values")).to_be_visible(timeout=30_000)
    screenshot(board, "optuna-history")
    board.reload()  # the address of a page inside
    expect(board.get_by_role("heading", name="Intermediate values")).to_be_visible(timeout=60_000)
    row = page.goto(f"{hub.demo.url}/user/tina/carme/runs.html") and page.get_by_role("row").filter(has_text=NAME)
    assert row
    expect(row).to_contain_text("Finished", timeout=150_000)
    board.locator('a[href$="/trials"]').first.click()
    board.wait_for_url(re.compile(r"/studies/\d+/trials"))
    board.get_by_text("Complete").first.wait_for(timeout=60_000)
    screenshot(board, "optuna-trials")
    study = re.search(r"/studies/(\d+)", board.url)
    assert study
    lines = board.request.get(f"{hub.demo.url}/user/tina/optuna/csv/{study[1]}").text().splitlines()
    assert lines[0].startswith("Number,State")
    assert 41 <= len(lines) <= 42
    board.set_viewport_size(PHONE)
    screenshot(board, "optuna-trials-phone")
    assert wrong == []
