"""Written by Carme Hub for one session: its apps, in place of jupyter-server-proxy's own pages for any port."""

# ruff: noqa: F821, S102  get_config and load_subconfig are given by traitlets; what is run here came with this file
import atexit
import base64
import contextlib
import json
import os
import shutil
import sys
import tempfile
import types
import zlib
from pathlib import Path

EXTENSIONS = {"jupyter_server_proxy": False, "carme_apps": True}

c = get_config()
# First of all: whatever goes wrong below, no port of the node is open to those who reach this server.
c.ServerApp.jpserver_extensions.update(EXTENSIONS)

if os.environ.get("JUPYTERHUB_DISABLE_USER_CONFIG"):
    # Then this file is named on the command line, which leaves out all others: those that are not the user's count.
    from jupyter_core.paths import jupyter_config_path

    for place in reversed(jupyter_config_path()):
        there = (Path(place) / "jupyter_server_config.py").is_file()
        if there and not Path(place).resolve().is_relative_to(Path.home().resolve()):
            load_subconfig("jupyter_server_config.py", path=place)
    c.ServerApp.jpserver_extensions.update(EXTENSIONS)

# At each start JupyterLab would run yarn and jupyter-lsp npm, where the image (or the node, which shows through) has
# node: a quarter of a second to learn which registry builds take, and where npm puts programs. A session builds nothing
# in its server, and these folders are found without npm; people name theirs in extra_node_roots.
node = shutil.which("node")
if node:
    near = [Path.cwd(), Path(sys.prefix) / "lib", Path(sys.prefix), Path(node).parent.parent / "lib"]
    with contextlib.suppress(ImportError):
        from jupyterlab import commands

        near.insert(1, Path(commands.get_app_dir()) / "staging")
        commands._yarn_config = lambda _logger: {"yarn config": {}, "npm config": {}}  # as without node
    c.LanguageServerManager.node_roots = [str(folder) for folder in dict.fromkeys([*near, Path("/usr/local/lib")])]

# MLflow would make the folder of its database for everybody to read.
database = Path(os.environ.get("MLFLOW_TRACKING_URI", "").removeprefix("sqlite:///"))
if database.is_relative_to(Path.home() / ".carme"):
    with contextlib.suppress(OSError):  # a home that cannot be written is said elsewhere
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

# These settings come before people's own, so it is looked at what those name: that stays theirs.
own = [Path.home() / ".jupyter" / f"jupyter_server_config.{kind}" for kind in ("py", "json")]
named = "".join(each.read_text("utf-8", "replace") for each in own if each.is_file())

# Jupyter would start a login shell, which sets PATH anew and hides what the image brings.
if "terminado_settings" not in named:
    shell = os.environ.get("SHELL", "")
    shell = shell if os.access(shell, os.X_OK) else "/bin/sh"
    reads = ["--rcfile", str(Path(__file__).with_name("terminal.bashrc"))] if Path(shell).name == "bash" else []
    c.ServerApp.terminado_settings = {"shell_command": [shell, *reads]}

# On the node, and short: a home may be far away, and a socket's path has 107 bytes at most. Folders in it are 0700.
near = tempfile.gettempdir()
near = near if len(near) < 34 else "/tmp"  # noqa: S108

# A kernel's iopub asks nobody who he is, and a port that Jupyter finds free may be taken before the kernel binds it.
if "JUPYTER_RUNTIME_DIR" not in os.environ and "transport" not in named:
    os.environ["JUPYTER_RUNTIME_DIR"] = runtime = tempfile.mkdtemp(prefix="carme-kernels-", dir=near)
    atexit.register(shutil.rmtree, runtime, ignore_errors=True)
if Path(os.environ.get("JUPYTER_RUNTIME_DIR", "")).name.startswith("carme-kernels-"):
    c.KernelManager.transport = "ipc"

if "carme_apps" not in sys.modules:
    folder = Path(tempfile.mkdtemp(prefix="carme-apps-", dir=near))
    packed = Path(__file__).with_name("carme-apps").read_bytes()
    for name, text in json.loads(zlib.decompress(base64.b64decode(packed))).items():
        (folder / name).write_text(text, encoding="utf-8")
    module = types.ModuleType("carme_apps")
    module.__file__ = str(folder / "carme_apps.py")
    try:
        exec(compile((folder / "carme_apps.py").read_text("utf-8"), module.__file__, "exec"), module.__dict__)
    except ImportError as error:
        sys.stderr.write(f"[carme] This session has no apps: the image needs jupyter-server-proxy ({error}).\n")
        c.ServerApp.jpserver_extensions.update({"carme_apps": False})
    else:
        sys.modules["carme_apps"] = module
