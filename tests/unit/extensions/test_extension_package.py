"""A package of another author adds one of each kind by its entry points, and each is used through the product's doors.

Its login policy is tried in front of a whole hub (tests/unit/auth), its app in a real Jupyter server
(tests/unit/spawners).
"""

from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from rig.extension import EXAMPLE, ROOT
from traitlets.config import Config, PyFileConfigLoader

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.policy_rules import policy_rules
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.accounting.slots.holds import Slot, hold
from carme_hub.containers.runtime import Image
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Person, QuotaRequest
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import ConfigError, ContainerError, ProfileNotAllowed, QuotaExceeded
from carme_hub.services.notifications import Notifier
from carme_hub.sessions.profile_fields import profile_field
from carme_hub.spawners.form.form import Offer, render_form
from carme_hub.spawners.hub.admission import Admission
from carme_hub.spawners.job_script import Owner, Server, Site, render
from carme_hub.spawners.slurm.spawner import SlurmContainerSpawner
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.idempotency import SentNotice
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore

ALICE = Owner("alice", 2001, 2001, "/home/alice")
SERVER = Server(("jupyterhub-singleuser",), {}, "http://hub/callback", "nonce")
SIF = Image("lab", "/opt/images/lab.sif", "sif")
BERLIN = ZoneInfo("Europe/Berlin")
#: A Wednesday.
NOON = datetime(2026, 11, 25, 12, tzinfo=BERLIN).timestamp()
EVENING = datetime(2026, 11, 25, 20, tzinfo=BERLIN).timestamp()


def spawner(**settings: Any) -> SlurmContainerSpawner:
    site = {"images": [{"name": "lab", "path": SIF.path, "format": "sif"}], **settings}
    return SlurmContainerSpawner(config=Config(SlurmContainerSpawner=site))


def test_nothing_of_the_package_is_imported_before_a_setting_names_it(extension: Path) -> None:
    spawner().check_settings()
    assert policy_rules(CarmeQuotas()) == {}
    assert "carme_hub_example" not in sys.modules


def test_the_configuration_of_the_example_is_a_site_that_starts(extension: Path) -> None:
    config = PyFileConfigLoader("jupyterhub_config.py", path=str(EXAMPLE)).load_config()
    made = SlurmContainerSpawner(config=config)
    made.check_settings()
    assert made.site().runtime.name == "singularity"


# -- a container runtime ----------------------------------------------------------------------------------------------


def test_a_runtime_that_the_configuration_names_runs_the_session_and_its_ranks(extension: Path) -> None:
    site = spawner(container_runtime="singularity", container_binds=["/data"]).site()
    request = Request("gpu", "lab", Gpus("a100", 2))
    document = json.loads(render("0f9a", ALICE, request, SIF, SERVER, site).data)
    argv = document["plan"]["argv"]
    assert argv[:2] == ["singularity", "--silent"]
    assert {"--nv", "--bind=/home/alice:/home/alice:rw", "--bind=/data:/data:ro", SIF.path} <= set(argv)
    assert document["plan"]["preflight"] == [SIF.path]
    assert document["plan"]["environ"]["SINGULARITYENV_CARME_SESSION"] == "0f9a"
    assert document["rank"]["plan"]["argv"][-1] == "@CARME_ARGV@"


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (Image("lab", "registry.example.org/lab:1", "ref"), "singularity runs images of the format dir, sif, sqfs"),
        (Image("lab", "/opt/images/lab", "dir", base="host"), "hold a whole system"),
        (Image("lab", "relative.sif", "sif"), "must be an absolute path"),
    ],
)
def test_a_runtime_of_a_package_is_asked_only_for_what_has_been_checked(
    extension: Path, image: Image, said: str
) -> None:
    site = spawner(container_runtime="singularity").site()
    with pytest.raises(ContainerError, match=said):
        render("0f9a", ALICE, Request("cpu", "lab"), image, SERVER, site)


# -- a policy rule ----------------------------------------------------------------------------------------------------


def ledger(tmp_path: Path, now: float, *rules: Any) -> Ledger:
    store = LedgerStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open())
    named = policy_rules(CarmeQuotas(policy_rules=list(rules), log=logging.getLogger("test")))
    more = {"policy": Policy, "factor": lambda *_: 1000, "clock": lambda: now, "rules": named}
    return Ledger(store, "lab", **more)


def ask(gpus: int) -> QuotaRequest:
    return QuotaRequest("physics", Gpus("a100", gpus), 3600)


@pytest.mark.parametrize(
    ("rules", "now", "gpus", "granted"),
    [
        (["small-by-day"], NOON, 4, True),
        (["small-by-day"], NOON, 5, False),
        (["small-by-day"], EVENING, 5, True),
        ([], NOON, 5, True),
    ],
)
async def test_a_rule_changes_what_admission_and_its_preview_say(
    extension: Path, tmp_path: Path, rules: list[str], now: float, gpus: int, granted: bool
) -> None:
    books = ledger(tmp_path, now, *rules)
    [seen] = await books.preview(Person("alice"), [ask(gpus)])
    decision = await books.admit("s1", Person("alice"), ask(gpus))
    assert decision.granted is seen.granted is granted
    assert decision.message == seen.message
    assert ("at most 4 GPUs" in decision.message) is not granted
    assert (await books.release("s1", "it was a try")) is granted  # what is refused holds nothing


async def test_the_hub_refuses_by_a_rule_that_its_configuration_names(extension: Path, tmp_path: Path) -> None:
    engine = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    book: Any = SimpleNamespace(known=True, accounts_of=lambda _user: ("physics",))
    watcher: Any = SimpleNamespace(latest=None)
    settings = CarmeQuotas(policy_rules=["small-by-day"])
    admission = Admission(settings, engine, "lab", book, watcher, logging.getLogger("test"))
    object.__setattr__(admission.ledger.context, "clock", lambda: NOON)
    user = SimpleNamespace(name="alice", admin=False, groups=[])
    with pytest.raises(QuotaExceeded, match="at most 4 GPUs"):
        await admission.hold(user, "s1", Request("gpu", "lab", Gpus("a100", 5)), lambda *_: None)
    await admission.hold(user, "s2", Request("gpu", "lab", Gpus("a100", 4)), lambda *_: None)


async def test_a_rule_is_asked_about_more_time_and_about_bookings_too(tmp_path: Path) -> None:
    asked = []
    books = ledger(tmp_path, NOON, asked.append)
    alice = Person("alice")
    assert (await books.admit("s1", alice, ask(1), partition="gpu", qos="high")).granted
    assert (await books.extend("s1", 600, person=alice)).granted
    slot = Slot("b1", "alice", "physics", Gpus("a100", 2), int(NOON), int(NOON) + 7200, "course")
    with books.context.store.transaction("lab") as writes:
        assert hold(books.context, writes, slot, alice, "alice").granted
    assert (await books.admit("s2", alice, ask(2), slot="b1")).granted
    said = [(each.kind, each.in_booking, each.ask.gpus.count, each.partition, each.qos) for each in asked]
    assert said == [
        ("session", False, 1, "gpu", "high"),
        ("extension", False, 1, "gpu", "high"),
        ("booking", False, 2, "", ""),
        ("session", True, 2, "", ""),
    ]
    assert (asked[1].start, asked[1].end, asked[1].now) == (NOON + 3600, NOON + 4200, NOON)


async def test_a_rule_that_fails_grants_nothing_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_request: Any) -> None:
        raise ZeroDivisionError("of its own")

    decision = await ledger(tmp_path, NOON, broken).admit("s1", Person("alice"), ask(1))
    assert not decision.granted
    assert decision.message == "The policy rule “broken” of this site failed. Tell an administrator."
    assert decision.largest is None
    assert "ZeroDivisionError" in caplog.text


# -- a profile field --------------------------------------------------------------------------------------------------


def offer(*fields: str) -> Offer:
    listed = [{"slug": "cpu", "display_name": "CPU", "fields": list(fields)}, {"slug": "bare", "display_name": "Bare"}]
    return Offer(parse_profiles(listed, profile_field(None)), accounts=("physics",), images={"lab": ""})


def test_a_field_is_in_the_form_of_the_profiles_that_name_it(extension: Path) -> None:
    html = render_form(offer("dataset"), options={"profile": "cpu", "dataset": "faces"})
    assert html.count("Data set</label>") == 1
    assert 'name="cpu.dataset"' in html
    assert 'value="faces"' in html
    assert "Its folder is $CARME_FIELD_DATASET" in html
    assert "Data set" not in render_form(offer())


def test_what_is_chosen_is_checked_on_the_server_and_said_at_the_field(extension: Path) -> None:
    there = offer("dataset")
    said = "Data set: the name of a data set has small letters, digits and hyphens."
    with pytest.raises(ProfileNotAllowed, match=said):
        there.choose({"profile": "cpu", "dataset": "../etc"})
    options = {"profile": "cpu", "dataset": "../etc"}
    html = render_form(there, options=options, problems=there.examine(options)[1])
    assert html.count(said) == 2  # in the summary and at the field
    with pytest.raises(ProfileNotAllowed, match="is not known"):
        there.choose({"profile": "bare", "dataset": "faces"})
    with pytest.raises(ProfileNotAllowed, match="short line of text"):
        there.choose({"profile": "cpu", "dataset": "a\nb"})


def test_its_value_reaches_the_request_the_session_and_the_database(extension: Path, tmp_path: Path) -> None:
    request = offer("dataset").choose({"profile": "cpu", "dataset": "faces"})
    assert request.fields == {"dataset": "/data/faces"}
    assert offer("dataset").choose({"profile": "cpu"}).fields == {}
    site = Site(spawner().site().runtime)
    image = Image("lab", "/opt/images/lab", "dir")
    document = json.loads(render("0f9a", ALICE, request, image, SERVER, site).data)
    for plan in (document["plan"], document["rank"]["plan"]):
        assert plan["environ"]["CARME_FIELD_DATASET"] == "/data/faces"
    store = SessionStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open())
    store.add(Session("s1", "lab", "alice", "", request, SessionState.INTENDED, NOON))
    kept = store.get("s1")
    assert kept is not None
    assert kept.request == request


def test_a_spawner_offers_the_field_and_a_profile_cannot_name_one_that_is_not_there(extension: Path) -> None:
    named = [{"slug": "cpu", "display_name": "CPU", "fields": ["dataset"]}]
    spawner(profile_list=named).check_settings()
    named[0]["fields"] = ["datasets"]
    with pytest.raises(ConfigError, match=r"profile_list\[0\] \(cpu\)\.fields: .*'datasets'.* have dataset "):
        spawner(profile_list=named).check_settings()
    named[0]["fields"] = ["dataset", "dataset"]
    with pytest.raises(ConfigError, match="dataset is the name of another option"):
        spawner(profile_list=named).check_settings()


# -- a training template ----------------------------------------------------------------------------------------------


def in_a_session(installed: Path, *argv: str) -> str:
    """Run a program as a session does whose image has the package."""
    environ = {**os.environ, "PYTHONPATH": f"{installed}:{ROOT}"}
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_template_is_listed_where_its_package_is_installed(installed_extension: Path) -> None:
    listed = in_a_session(installed_extension, "-m", "carme_hub.training.command", "templates")
    assert "gradient-clipping     Gradient clipping: no step is longer than you allow" in listed
    assert str(installed_extension / "carme_hub_example/templates/gradient_clipping.py") in listed
    assert listed.startswith("ddp ")
    there = in_a_session(installed_extension, "-m", "carme_hub.cli", "templates")
    assert there == listed


def test_the_gallery_shows_and_copies_it(installed_extension: Path, tmp_path: Path) -> None:
    show = """if True:
        import re, sys
        from pathlib import Path
        from carme_hub.training.templates.gallery import Gallery
        gallery = Gallery("/user/alice/templates", Path(sys.argv[1]))
        page = gallery.page()
        print(re.search(r'<h2 id="gradient-clipping">(.*)</h2>', page)[1])
        word = re.search(r'name="word" value="([^"]+)"', page)[1]
        print(gallery.copy_from_form({"word": word, "name": "gradient-clipping", "kind": "notebook"}))
        print("torch" in sys.modules, "carme_hub_example.templates.gradient_clipping" in sys.modules)
    """
    said = in_a_session(installed_extension, "-c", show, str(tmp_path)).splitlines()
    assert said == [
        "Gradient clipping: no step is longer than you allow",
        "/user/alice/templates/open/gradient-clipping.ipynb",
        "False False",  # it was read, not run
    ]
    notebook = json.loads((tmp_path / "gradient-clipping.ipynb").read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "carme-torchrun"
    assert "clip_grad_norm_" in "".join(notebook["cells"][2]["source"])
    for cell in notebook["cells"][1:]:
        ast.parse("".join(line for line in cell["source"] if not line.startswith("%%")))


# -- a notice channel -------------------------------------------------------------------------------------------------


class ChatServer(HTTPServer):
    """Takes messages as a chat does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Takes)
        self.got: list[str] = []


class _Takes(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.got.append(said["text"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    server = ChatServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def notice(text: str) -> tuple[SentNotice, str]:
    return SentNotice("about", "alice", "warning", text, NOON), "https://hub.example.org/my"


def notifier(**sections: Any) -> Notifier:
    kept: Any = None
    return Notifier(CarmeQuotas(config=Config(sections)), kept, "Your GPU time", logging.getLogger("test"))


async def test_a_channel_that_the_configuration_names_gets_each_notice(
    extension: Path, chat: ChatServer, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(f"http://127.0.0.1:{chat.server_port}/hook\n")
    told = notifier(CarmeQuotas={"notice_channels": ["chat"]}, Chat={"url_file": str(tmp_path / "url")})
    await told.send([notice("75 % of your time is used."), notice("90 % of your time is used.")])
    assert chat.got == [f"@alice {n} % of your time is used. https://hub.example.org/my" for n in (75, 90)]


async def test_a_channel_that_fails_keeps_no_other_from_being_asked(caplog: pytest.LogCaptureFixture) -> None:
    got = []

    def broken(_notice: Any) -> None:
        raise ConnectionError("with the address https://chat.example.org/secret")

    async def good(each: Any) -> None:
        got.append((each.user, each.level, each.text, each.at, each.link))

    await notifier(CarmeQuotas={"notice_channels": [broken, good]}).send([notice("It is late.")])
    assert got == [("alice", "warning", "It is late.", int(NOON), "https://hub.example.org/my")]
    assert "A notice for alice could not be sent by broken: ConnectionError" in caplog.text
    assert "secret" not in caplog.text
