"""Runs that are logged by MLflow in a session are shown by its page, which the launcher opens."""

from __future__ import annotations

import uuid

from playwright.sync_api import BrowserContext, Response, expect
from rig.hub import Hub
from rig.training import Lab
from windows import PHONE, log_in, open_app, screenshot

NAME = f"experiment-{uuid.uuid4().hex[:8]}"
LOGGED = f"""%%distributed -n 1 --gpus-per-task 0 --time 10m --name {NAME} --detach
import time
import mlflow
from carme_hub.training import here
mlflow.set_experiment("{NAME}")
with mlflow.start_run(run_name="first"):
    mlflow.log_param("lr", 0.25)
    for step in range(40):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
        here.step(step + 1, total=40, samples=32, loss=1 / (step + 1))
        time.sleep(0.6)
"""


def test_what_mlflow_logs_in_a_rank_is_on_its_page_and_what_the_rank_used_among_the_runs(
    hub: Hub, window: BrowserContext
) -> None:
    lab = Lab(hub, "tina", gpus=1, cpus=2, memory_gib=6, time_minutes=60)
    lab.check_in_thread("%load_ext carme_hub.training")
    lab.check_in_thread(LOGGED, 150)
    page = window.new_page()
    log_in(page, hub, "tina", "home")
    board = open_app(page, hub, "tina", "MLflow")
    refused: list[str] = []

    def note(answer: Response) -> None:
        # MLflow's own pages ask for users, whom a server without its log-in does not know: 404.
        if (answer.status in (401, 403) or answer.status >= 500) and "/user/tina/mlflow/" in answer.url:
            refused.append(f"{answer.status} {answer.request.method} {answer.url}")

    board.on("response", note)
    board.wait_for_url("**/user/tina/mlflow/**")
    board.get_by_text("Model training").first.click(timeout=150_000)
    board.get_by_role("link", name="Experiments").first.click()
    board.get_by_role("link", name=NAME).first.click(timeout=60_000)
    board.get_by_role("link", name="first", exact=True).first.wait_for(timeout=60_000)
    screenshot(board, "mlflow-experiment")
    board.get_by_role("link", name="first", exact=True).first.click()
    expect(board.get_by_text("loss").first).to_be_visible(timeout=30_000)
    screenshot(board, "mlflow-run")
    board.set_viewport_size(PHONE)
    screenshot(board, "mlflow-run-phone")
    assert refused == []
    board.close()

    runs = f"{hub.demo.url}/user/tina/carme/runs.html"
    page.goto(runs)
    row = page.get_by_role("row").filter(has_text=NAME)
    expect(row).to_contain_text("Finished", timeout=150_000)
    row.get_by_role("button", name=NAME, exact=True).click()
    expect(page.get_by_role("heading", name="Use", exact=True)).to_be_visible(timeout=30_000)
    expect(page.get_by_role("img", name="Memory (GiB) by second")).to_be_visible()
    screenshot(page, "runs-use")
    page.set_viewport_size(PHONE)
    page.get_by_role("heading", name="Use", exact=True).scroll_into_view_if_needed()
    screenshot(page, "runs-use-phone")
