"""The hub of the sandbox with a configuration of ``examples/``: what the example is about stays as it is written there.

What differs in a sandbox comes from the sandbox's own file, which is run after the example: addresses, certificates,
Slurm, images. Then come the sections that the test keeps, as the example has them, and what the test changes.
"""

from __future__ import annotations

import contextlib
import http.cookiejar
import os
import pwd
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import distribution
from pathlib import Path

from rig.hub import Hub

from carme_hub.sandbox.demo import Demo

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
BEFORE = """
import json, os

with open(os.environ["CARME_SANDBOX_HUB"]) as file:
    ports = json.load(file)["ports"]
c = get_config()
for section, name in (("CarmeQuotas", "quotas"), ("CarmeReservations", "reservations"), ("CarmeActivity", "activity")):
    c[section].port = ports[name]
"""
AFTER = """
# -- what is different in the sandbox ----------------------------------------------------------------------------------
from copy import deepcopy

example = deepcopy(c)
for name in ("ssl_cert", "ssl_key"):
    c.JupyterHub.pop(name, None)
for name in list(c.CarmeSlurm):
    del c.CarmeSlurm[name]
with open(SANDBOX) as file:
    exec(compile(file.read(), SANDBOX, "exec"))
for section in KEPT:
    c[section].update(example[section])
"""


@dataclass(frozen=True)
class DemoOfExample(Demo):
    """The sandbox's hub with another configuration file."""

    file: Path

    @property
    def config_file(self) -> Path:
        """The example, with what is different in the sandbox."""
        return self.file


@contextmanager
def example_hub(
    site: Hub,
    name: str,
    folder: Path,
    *,
    kept: tuple[str, ...] = (),
    replaced: Mapping[str, str] | None = None,
    changes: str = "",
    packages: tuple[str, ...] = (),
    **environment: str,
) -> Iterator[Hub]:
    """Run the hub with an example in the place of the sandbox's own file; afterwards that one runs again.

    Args:
        folder: a folder that every account can reach. kept: sections that stay as the example has them.
        replaced: texts of the example, and what stands in their place. changes: lines at the end of the file.
        packages: distributions of the tests' environment that the example needs.
        environment: of the hub, such as its secrets.
    """
    demo = site.demo
    source = EXAMPLES / name
    text = (source / "jupyterhub_config.py").read_text()
    for old, new in {"/var/lib/carme-hub": str(demo.folder), **(replaced or {})}.items():
        assert old in text, f"{name} has no {old}"
        text = text.replace(old, new)
    place = folder / name
    place.mkdir()
    for beside in source.iterdir():
        if beside.suffix == ".yaml":
            shutil.copy(beside, place)
    file = place / "jupyterhub_config.py"
    values = f"SANDBOX, KEPT = {str(demo.config_file)!r}, {kept!r}\n"
    file.write_text("\n".join([BEFORE, text, values, AFTER, changes]))
    owner = pwd.getpwnam(demo.user)
    for path in (place, *place.iterdir()):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    for path in place.iterdir():
        path.chmod(0o600)
    if packages:
        copy_distributions(folder / "packages", *packages)
        environment["PYTHONPATH"] = str(folder / "packages")
    site.stop_all()
    site.stop()
    hub = Hub(DemoOfExample(**{field.name: getattr(demo, field.name) for field in fields(demo)}, file=file))
    try:
        hub.start(**environment)
        yield hub
        hub.stop_all()
    finally:
        hub.stop()
        site.start()


def copy_distributions(folder: Path, *names: str) -> None:
    """Copy distributions, with their entry points, to where the hub's user can read them."""
    for name in names:
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            here = Path(str(found.locate_file(top)))
            (shutil.copytree if here.is_dir() else shutil.copy2)(here, folder / top)


class Browser:
    """A person's browser: it keeps cookies of all hosts, and follows redirects to any of them."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )
        self.address = ""
        self.status = 0

    def open(self, url: str, form: Mapping[str, str] | None = None) -> str:
        """Open a page, or send a form, and return what is shown in the end; ``address`` and ``status`` are its."""
        data = None if form is None else urllib.parse.urlencode(form).encode()
        try:
            answer = self._opener.open(url, data, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        with contextlib.closing(answer):
            self.address, self.status = str(answer.geturl()), int(answer.status)
            return answer.read().decode("utf-8", "replace")

    def fill_in(self, page: str, **values: str) -> str:
        """Send the first form of a page that was opened last, with its hidden fields and these values."""
        [form] = re.findall(r"<form[^>]*>.*?</form>", page, flags=re.DOTALL)[:1]
        hidden = dict(re.findall(r'<input[^>]*type="hidden"[^>]*name="([^"]+)"[^>]*value="([^"]*)"', form))
        hidden |= dict(re.findall(r'<input[^>]*name="([^"]+)"[^>]*type="hidden"[^>]*value="([^"]*)"', form))
        [action] = re.findall(r'<form[^>]*action="([^"]*)"', form)[:1] or [""]
        return self.open(urllib.parse.urljoin(self.address, action.replace("&amp;", "&")), {**hidden, **values})


def works(hub: Hub, user: str, **options: object) -> dict[str, str]:
    """Start a session of a user, run a cell in it, and return its job."""
    assert hub.start_server(user, **options)["ready"]
    assert hub.run_cell(user, hub.new_kernel(user), "print(6 * 7)") == "42\n"
    jobs = [row for row in hub.jobs() if row["user"] == user]
    return max(jobs, key=lambda row: int(row["id"]))  # one that was stopped before may still complete
