"""
The shape of github.com/isambard-sc/brics_jupyterhub_envs, volumes/prod/jupyterhub_root/etc/jupyterhub/
jupyterhub_config.py, commit 01c166d133d4: values from the environment by a function, a spawner class by its entry point's
name, commands that are computed, a batch script as a template, roles and templates of the site.
"""

c = get_config()  # noqa

from pathlib import Path
import urllib.parse

import batchspawner  # only for what its import does


def value_of(name: str) -> str:
    from os import environ

    try:
        return environ[name]
    except KeyError as error:
        raise RuntimeError(f"{name} must be set") from error


BASE_URL = value_of("SITE_BASE_URL")
c.JupyterHub.bind_url = f"http://127.0.0.1:8000{BASE_URL}"
c.JupyterHub.hub_bind_url = "http://:8081"

c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.cleanup_servers = False
c.JupyterHub.spawner_class = "site"

c.Spawner.hub_connect_url = value_of("SITE_HUB_CONNECT_URL")
c.Spawner.env_keep = []
c.Spawner.environment = {"SITE_PREFIX": value_of("SITE_PREFIX"), "SITE_NAME": "example"}
c.Spawner.notebook_dir = "~/"
c.Spawner.start_timeout = 420

c.SiteSlurmSpawner.poll_interval = 60
c.SiteSlurmSpawner.startup_poll_interval = 15


def key_file() -> Path:
    return (Path(value_of("SITE_FOLDER")) / "ssh_key").resolve(strict=True)


c.SiteSlurmSpawner.req_srun = "srun --export=ALL"
SSH = ["ssh", "-i", str(key_file()), f"hub@{value_of('SITE_LOGIN')}", "sudo -u {username}"]
c.SiteSlurmSpawner.exec_prefix = " ".join(SSH)

WRAPPERS = value_of("SITE_WRAPPERS")
c.SiteSlurmSpawner.batch_submit_cmd = " ".join(["{% for v in keepvars.split(',') %}{{v}}=1 {% endfor %}", f"{WRAPPERS}/submit"])
c.SiteSlurmSpawner.batch_query_cmd = "JOB={{job_id}} " + f"{WRAPPERS}/query"
c.SiteSlurmSpawner.batch_cancel_cmd = "JOB={{job_id}} " + f"{WRAPPERS}/cancel"

c.SiteSlurmSpawner.req_options = "--nodes=1"
c.SiteSlurmSpawner.batch_script = """#!/bin/bash
#SBATCH --output={{homedir}}/hub_%j.log
#SBATCH --job-name=spawner-jupyterhub
#SBATCH --chdir={{homedir}}
#SBATCH --export={{keepvars}}
#SBATCH --get-user-env
{% if partition  %}#SBATCH --partition={{partition}}
{% endif %}{% if runtime    %}#SBATCH --time={{runtime}}
{% endif %}{% if gres       %}#SBATCH --gres={{gres}}
{% endif %}{% if ngpus      %}#SBATCH --gpus={{ngpus}}
{% endif %}{% if options    %}#SBATCH {{options}}{% endif %}

set -euo pipefail

source ${SITE_PREFIX}/bin/activate jupyter

export JUPYTER_PATH=${SITE_DATA}${JUPYTER_PATH:+:}${JUPYTER_PATH:-}

trap 'echo SIGTERM received' TERM
{{prologue}}
{% if srun %}{{srun}} {% endif %}{{cmd}}
echo "ended gracefully"
{{epilogue}}
"""

c.Authenticator.enable_auth_state = False
c.DummyAuthenticator.password = "a secret of the site"
c.Authenticator.allowed_users = {"tina", "tom"}
c.JupyterHub.logo_file = f"{urllib.parse.quote('/srv/site')}/logo.png"
c.JupyterHub.cookie_max_age_days = 0.5
c.JupyterHub.template_paths = [str(Path(__file__).parent.joinpath("templates").resolve())]
c.Authenticator.manage_groups = True
c.JupyterHub.load_roles = [
    {
        "name": "site-admin",
        "description": "Those who run the site",
        "scopes": ["admin-ui", "read:servers", "delete:servers", "list:users"],
        "groups": ["site-admins"],
    },
]
