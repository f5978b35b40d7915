"""jupyterhub_config.py of the peer: a plain JupyterHub with batchspawner's SlurmSpawner, at batchspawner's defaults.

It sets only what this machine needs: the path of Slurm's settings, 127.0.0.1 as the address of all nodes, and a token
for the benchmark. ``BENCHMARK_PEER`` names the file with the facts.
"""

# ruff: noqa: F821  get_config is given by traitlets
import json
import os
from pathlib import Path

from batchspawner import SlurmSpawner
from traitlets import Unicode

facts = json.loads(Path(os.environ["BENCHMARK_PEER"]).read_text(encoding="utf-8"))


class SlurmSpawnerOnLoopback(SlurmSpawner):  # type: ignore[misc]
    """batchspawner's own; its start() takes the address to listen on from the class."""

    ip = Unicode("127.0.0.1").tag(config=True)


c = get_config()  # type: ignore[name-defined]
public, hub, proxy = facts["ports"]
c.JupyterHub.bind_url = f"http://127.0.0.1:{public}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{hub}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{proxy}"
c.JupyterHub.db_url = f"sqlite:///{facts['folder']}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = f"{facts['folder']}/cookie-secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.allow_named_servers = True
c.JupyterHub.spawner_class = SlurmSpawnerOnLoopback
c.SlurmSpawner.state_exechost_exp = "127.0.0.1"
c.SlurmSpawner.batchspawner_singleuser_cmd = facts["wrapper"]
c.Spawner.cmd = facts["cmd"]
c.Spawner.environment = {"SLURM_CONF": facts["slurm_conf"], "PATH": facts["path"]}
c.JupyterHub.services = [{"name": "benchmark", "api_token": facts["token"]}]
c.JupyterHub.load_roles = [
    {
        "name": "benchmark",
        "scopes": ["admin:users", "admin:servers", "access:servers", "tokens", "read:hub", "read:metrics"],
        "services": ["benchmark"],
    },
]
for section, values in facts["settings"].items():
    for name, value in values.items():
        if name == "environment":
            value = {**c.Spawner.environment, **value}
        c[section][name] = value
