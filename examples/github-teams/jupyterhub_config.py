"""Log in with GitHub: members of a team of one organization may use the hub. README.md explains it."""

import os
from typing import Any

import carme_hub

c = get_config()  # type: ignore[name-defined]  # noqa: F821  given by traitlets

carme_hub.configure(c, state_folder="/var/lib/carme-hub")

# -- how people log in -------------------------------------------------------------------------------------------------
ORGANIZATION = "example-lab"
#: Whose number at GitHub is whose name on the cluster. A name at GitHub says nothing about the person of that name
#: here, and can be given up and taken by somebody else; a number stays.
CLUSTER_NAMES = {583231: "alice"}


def cluster_name(person: dict[str, Any]) -> str:
    """Return the name on the cluster, or one that no system has."""
    return CLUSTER_NAMES.get(person["id"], f"{person['login']} of GitHub")


def teams(auth_state: dict[str, Any]) -> list[str]:
    """Return the teams of our organization, as groups that no system has: github:TEAM."""
    found = auth_state.get("teams", [])
    return ["github:" + team["slug"] for team in found if team["organization"]["login"] == ORGANIZATION]


c.CarmeAuthenticator.authenticator_class = "github"
c.GitHubOAuthenticator.client_id = "Ov23liExampleExample"
# From the environment of the hub's unit. Services of the hub read this file without it, so it may be missing here.
c.GitHubOAuthenticator.client_secret = os.environ.get("GITHUB_CLIENT_SECRET", "")
c.GitHubOAuthenticator.oauth_callback_url = "https://hub.example.org/hub/oauth_callback"
c.GitHubOAuthenticator.scope = ["read:org"]
c.GitHubOAuthenticator.username_claim = cluster_name
c.GitHubOAuthenticator.populate_teams_in_auth_state = True
c.GitHubOAuthenticator.auth_state_groups_key = teams
# Keeps GitHub's token, encrypted with JUPYTERHUB_CRYPT_KEY, so that it is asked again which teams somebody is in.
c.Authenticator.enable_auth_state = True

# -- who may use the hub: nobody but the members of these teams --------------------------------------------------------
c.CarmeAuthenticator.login_groups = True
c.CarmeAuthenticator.allowed_groups = {"github:gpu-users"}
c.CarmeAuthenticator.role_groups = {"admin": {"github:hub-admins"}}

# -- as on every site: docs/howto/real-site.md -------------------------------------------------------------------------
c.JupyterHub.bind_url = "https://:443"
c.JupyterHub.ssl_cert = "/etc/carme-hub/hub.pem"
c.JupyterHub.ssl_key = "/etc/carme-hub/hub.key"
c.JupyterHub.hub_bind_url = "https://10.0.0.1:8081"  # this machine, as compute nodes reach it
c.JupyterHub.trusted_alt_names = ["IP:10.0.0.1"]
c.CarmeSlurm.cluster = "mycluster"
c.CarmeSlurm.submit_via = "sudo"
c.CarmeSlurm.submit_command = ["/usr/local/libexec/carme-submit"]
c.CarmeSlurm.jobs_command = ["/usr/local/libexec/carme-jobs"]
c.SlurmContainerSpawner.images = [{"name": "default", "path": "/opt/images/default"}]
c.SlurmContainerSpawner.profile_list = [{"slug": "a100", "display_name": "A100", "gpus": {"types": ["a100"], "max": 4}}]
