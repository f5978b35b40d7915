# The shape of github.com/AaltoSciComp/triton-jupyterhub, jupyterhub_config.py, commit 091bf168d7b2: ProfilesSpawner with
# dicts that are merged, a live and a test hub in one file, settings that use other settings, a culler.
import os
import sys

live = "DEV" not in os.environ
number = 1 if not os.environ.get("DEV", "").isdigit() else int(os.environ["DEV"])
BASEDIR = os.path.dirname(__file__)

c.JupyterHub.hub_ip = "10.0.0.30"
if live:
    c.JupyterHub.hub_port = 8081
    c.JupyterHub.db_url = "sqlite:////etc/jupyterhub/jupyterhub.sqlite"
    c.JupyterHub.base_url = "/"
else:
    c.JupyterHub.hub_port = 8081 + number * 200
    c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:%s" % (8001 + number * 200)
    c.JupyterHub.db_url = "sqlite:////etc/jupyterhub/jupyterhub-dev.sqlite"
    c.JupyterHub.base_url = "/dev"

if "JUPYTER_PERSIST" in os.environ:
    c.JupyterHub.cleanup_servers = False

import grp

c.Authenticator.admin_users = set(grp.getgrnam("sudo").gr_mem) & set(grp.getgrnam("users").gr_mem)
c.LocalAuthenticator.group_whitelist = {"users"}
c.Spawner.disable_user_config = True
c.JupyterHub.cookie_max_age_days = 3

c.JupyterHub.spawner_class = "wrapspawner.ProfilesSpawner"
c.Spawner.http_timeout = 120
command = """\
unset XDG_RUNTIME_DIR
sh {BASEDIR}/setup.sh
{BASEDIR}/bin/jupyterhub-singleuser""".format(BASEDIR=BASEDIR)
shared = dict(req_partition="interactive", req_options="", req_workdir="/shared/work/{user}", cmd=command)
c.ProfilesSpawner.profiles = [
    # ("Local process", "local", "jupyterhub.spawner.LocalProcessSpawner", dict()),
    ("Slurm 10h 2G", "slurm1", "batchspawner.SlurmSpawner",
        {**shared, **dict(req_partition="cpu", req_memory="2200", req_runtime="0-10")}),
    ("Slurm 10h 5G (ends when idle)", "slurm3", "batchspawner.SlurmSpawner",
        {**shared, **dict(req_partition="cpu", req_memory="5200", req_runtime="0-10", req_culltime=60*60+300)}),
    ("Slurm 5day 2G", "slurm5", "batchspawner.SlurmSpawner",
        {**shared, **dict(req_partition="gpu", req_memory="2200", req_runtime="5-0")}),
]

c.Spawner.notebook_dir = "/shared/work/{username}/"
c.Spawner.poll_interval = 300
c.JupyterHub.last_activity_interval = 60

c.JupyterHub.services = [
    {"name": "cull-idle",
     "command": [sys.executable, os.path.join(BASEDIR, "cull.py"), "--timeout=600",
                 "--url=http://%s:%s%s/hub/api" % (c.JupyterHub.hub_ip, c.JupyterHub.hub_port, c.JupyterHub.base_url)],
    }]
