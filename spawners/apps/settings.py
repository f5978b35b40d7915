"""CarmeApps: the settings of a session's apps, and the files for its session folder.

The session folder is on the server's ``JUPYTER_CONFIG_PATH``, so that the server loads the apps' extension
(``spawners/apps/server_extension.py``). The files are packed, since the data document must fit into one variable.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from traitlets import Dict, List, TraitError, Unicode, validate
from traitlets.config import Configurable

from carme_hub import paths
from carme_hub.entry_points import ExtensionPoint
from carme_hub.errors import ConfigError
from carme_hub.paths import share_folder

#: The program that serves TensorBoard; one of the packed files.
TENSORBOARD = "{folder}/carme-tensorboard.py"
#: Where MLflow keeps runs in a user's home folder, and the variable by which its clients know it.
TRACKING_URI, MLFLOW = "MLFLOW_TRACKING_URI", "sqlite:///{home}/.carme/mlflow/mlflow.db"
#: The built-in apps, in the format of ``CarmeApps.apps``.
BUILT_IN: dict[str, dict[str, Any]] = {
    "tensorboard": {
        "title": "TensorBoard",
        "needs": "python:tensorboard",
        "command": ["{python}", TENSORBOARD, "--socket", "{unix_socket}", "--prefix", "{prefix}"],
        "whole_path": True,
        "quiet": ["/carme/news"],
    },
    "mlflow": {
        "title": "MLflow",
        "needs": "python:mlflow",
        "command": [
            *("{python}", "-m", "mlflow", "server", "--backend-store-uri", MLFLOW, "--static-prefix", "{prefix}"),
            # Artifacts are files of the user; code that writes into the database itself keeps them in its own folder.
            # Host and origin are checked where a request reaches the session's server.
            *("--no-serve-artifacts", "--default-artifact-root", "{home}/.carme/mlflow/artifacts", "--workers", "1"),
            *("--uvicorn-opts", "--uds {unix_socket} --log-level warning"),
        ],
        "environment": {
            "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # a further process, for language models
        },
        "quiet": ["/ajax-api/", "/graphql"],  # an open page asks for news by itself
        "whole_path": True,
    },
    "optuna": {
        "title": "Optuna",
        "needs": "python:optuna_dashboard python:carme_hub.training.sweeps.dashboard",
        "command": [
            *(
                "{python}",
                "-m",
                "carme_hub.training.sweeps.dashboard",
                "--socket",
                "{unix_socket}",
                "--prefix",
                "{prefix}",
            ),
            *("--journal", "{home}/.carme/optuna/journal.log"),
        ],
        "quiet": ["/api/"],  # an open page asks for news by itself
    },
    "vscode": {
        "title": "VS Code",
        "needs": "program:code-server",
        "command": [
            *("code-server", "--socket", "{unix_socket}", "--auth", "none", "--disable-telemetry"),
            *("--disable-update-check", "--disable-workspace-trust"),
            # By default it is in the home folder, which all sessions of a user share, also those on other nodes.
            *("--session-socket", "{folder}/code-session.sock"),
        ],
        "environment": {"CS_DISABLE_PROXY": "1"},
        "closed": [
            "/proxy/",
            "/absproxy/",
        ],  # code-server's own proxy to any port; older releases do not know CS_DISABLE_PROXY
        "hub": True,
    },
    "templates": {
        "title": "New from template",
        "needs": "python:carme_hub.training.templates.gallery",
        "command": [
            *(
                "{python}",
                "-m",
                "carme_hub.training.templates.gallery",
                "--socket",
                "{unix_socket}",
                "--prefix",
                "{prefix}",
            ),
        ],
        "whole_path": True,
    },
}
#: The fields of an app, and their types.
FIELDS: dict[str, type] = {
    "title": str,
    "command": list,
    "environment": dict,
    "needs": str,
    "icon": str,
    "category": str,
    "browser_tab": bool,
    "whole_path": bool,
    "cookies": list,
    "quiet": list,
    "closed": list,
    "hub": bool,
}
NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
#: Paths below a server's prefix that JupyterLab and JupyterHub use.
TAKEN = frozenset(
    {
        *("api", "consoles", "custom", "doc", "edit", "files", "hub", "kernelspecs", "lab", "login", "logout", "lsp"),
        *("metrics", "nbconvert", "notebooks", "oauth-callback", "proxy", "server-proxy", "services", "static"),
        *("terminals", "tree", "user", "view", "voila"),
    }
)
#: Apps of other packages, each in the format of ``CarmeApps.apps``.
POINT = ExtensionPoint(
    "carme_hub.apps",
    "CarmeApps.offered",
    "a dict in the format of CarmeApps.apps",
    lambda app: isinstance(app, dict),
    tuple(BUILT_IN),
)
#: The files of the session folder: the server's settings, the packed apps, and bash's start-up file for terminals.
CONFIG, PACKED, BASHRC = "jupyter_server_config.py", "carme-apps", "terminal.bashrc"


class CarmeApps(Configurable):
    """Programs of the image as pages of a session, with an icon in JupyterLab's launcher."""

    offered = List(
        Unicode(),
        default_value=list(BUILT_IN),
        help="""The apps that are offered if the image has them: the built-in ones TensorBoard (``tensorboard``), VS
        Code in the browser (code-server, ``vscode``), MLflow (``mlflow``), Optuna's dashboard (``optuna``) and the
        gallery of templates (``templates``), and apps of installed packages, by the names of their entry points
        (docs/howto/add-an-app.md).
        Example: ``["tensorboard", "whiteboard"]``.""",
    ).tag(config=True)

    apps = Dict(
        value_trait=Dict(),
        key_trait=Unicode(),
        help="""Further apps: a name (its path below the server's own) and its fields. ``command`` is a list of
        arguments; one of them or a variable of ``environment`` contains ``{unix_socket}``: the app listens there, since
        a port of the node is open to everybody on it. See docs/howto/apps.md for all fields. Example::

            c.CarmeApps.apps = {
                "streamlit": {
                    "title": "My dashboard",
                    "command": ["streamlit", "run", "app.py", "--server.address", "unix://{unix_socket}"],
                    "needs": "program:streamlit",
                },
            }
        """,
    ).tag(config=True)

    @validate("apps")
    def _check(self, proposal: Any) -> dict[str, dict[str, Any]]:
        for name, app in proposal["value"].items():
            wrong = fault(name, app)
            if wrong:
                raise TraitError(f"CarmeApps.apps[{name!r}]: {wrong}")
        return dict(proposal["value"])

    def environ(self, home: str) -> dict[str, str]:
        """Return variables of the session, and of its ranks, that programs need to know of its apps."""
        if "mlflow" not in self.offered:
            return {}
        # A compute node reports to nobody of its own accord.
        return {TRACKING_URI: MLFLOW.format(home=home), "MLFLOW_DISABLE_TELEMETRY": "true"}

    def entries(self) -> list[dict[str, Any]]:
        """Return all apps as the session's server reads them; an administrator's app replaces a built-in one."""
        apps = {name: BUILT_IN[name] if name in BUILT_IN else _installed_app(name) for name in self.offered}
        return [{"name": name, "title": name, **app} for name, app in {**apps, **self.apps}.items()]

    def files(self) -> dict[str, str]:
        """Return the files of the session folder: name to text. They hold nothing secret."""
        return dict(_files(json.dumps(self.entries())))


def _installed_app(name: str) -> dict[str, Any]:
    """Return an app of an installed package; ``ConfigError`` says what is wrong with it."""
    app: dict[str, Any] = POINT.load(name)
    if wrong := fault(name, app):
        raise ConfigError(f"c.CarmeApps.offered: the app {name!r} of the package {POINT.source(name)}: {wrong}")
    return app


@cache
def _files(entries: str) -> Mapping[str, str]:
    # Cached while the hub runs: each start needs them, and an upgrade of a running hub's files must not mix versions.
    share = share_folder() / "apps"
    listed = json.loads(entries)
    files = {"carme_apps.py": _text(Path(__file__).with_name("server_extension.py"))}
    for app in listed:
        icon = Path(app.pop("icon", "") or share / f"{app['name']}.svg")
        if icon.is_file():
            files[f"carme-app-{app['name']}.svg"] = _text(icon)
        if TENSORBOARD in app["command"]:
            tensorboard = Path(paths.__file__).parent / "training/tensorboard"
            files["carme-tensorboard.py"] = _text(tensorboard / "server.py")
            files["carme_tensorboard_files.py"] = _text(tensorboard / "files.py")
            for kind in ("js", "html"):
                files[f"carme-tensorboard.{kind}"] = _text(share / f"tensorboard.{kind}")
    files["apps.json"] = json.dumps(listed)
    packed = base64.b64encode(zlib.compress(json.dumps(files).encode(), 9)).decode()
    return {CONFIG: _text(share / CONFIG), PACKED: packed, BASHRC: _text(share / BASHRC)}


def fault(name: str, app: Mapping[str, Any]) -> str:
    """Return the problem with an app's definition, "" for none."""
    if not NAME.fullmatch(name):
        return "a name has lower-case letters, digits and hyphens, begins with a letter, and has 32 at most"
    if name in TAKEN:
        return "JupyterLab has pages of its own at this name; choose another"
    for field, value in app.items():
        if field not in FIELDS:
            return f"there is no field {field!r}; there are {', '.join(FIELDS)}"
        if not isinstance(value, FIELDS[field]):
            return f"{field} must be a {FIELDS[field].__name__}"
    words = [*app.get("command", ()), *app.get("environment", {}).values()]
    if not app.get("command") or not all(isinstance(word, str) for word in words):
        return "command is a list of texts, and the values of environment are texts"
    if not any("{unix_socket}" in word for word in words):
        return (
            "neither command nor environment has {unix_socket}; an app must listen there, since everybody on the node "
            "reaches a port. docs/howto/apps.md says what to do with one that knows only ports"
        )
    if not all(re.fullmatch(r"python:[A-Za-z_][\w.]*|program:[\w.+-]+", each) for each in app.get("needs", "").split()):
        return "needs is python:MODULE or program:NAME, or several of them with spaces between"
    hub = [cookie for cookie in app.get("cookies", ()) if re.match(r"jupyterhub|_xsrf$|username-", str(cookie))]
    if hub:
        return f"{hub[0]} is the hub's own cookie, which no app may see"
    if not all(re.fullmatch(r"/[^A-Z]*/", str(path)) for path in app.get("closed", ())):
        return "closed has paths in small letters that begin and end with /"
    icon = app.get("icon", "")
    if icon and not (icon.endswith(".svg") and Path(icon).is_file()):
        return "icon is an SVG file on the hub's machine"
    return ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
