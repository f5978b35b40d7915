"""A cluster with single sign-on, slurmrestd and PostgreSQL. Secrets come from the environment (carme-hub.service)."""

import os

import carme_hub

c = get_config()  # type: ignore[name-defined]  # noqa: F821  given by traitlets

carme_hub.configure(c, state_folder="/var/lib/carme-hub")

# Databases: the hub's and ours, never the same one.
c.JupyterHub.db_url = "postgresql+psycopg://carme@db.example.org/jupyterhub"  # the password is in ~/.pgpass
c.JupyterHub.db_kwargs = {}  # configure(c) has set what SQLite needs
c.CarmeStore.url = "postgresql+psycopg://carme@db.example.org/carme"

# Where it listens.
c.JupyterHub.bind_url = "https://:443"
c.JupyterHub.ssl_cert = "/etc/carme-hub/hub.example.org.pem"
c.JupyterHub.ssl_key = "/etc/carme-hub/hub.example.org.key"
c.JupyterHub.hub_bind_url = "https://10.0.0.1:8081"
c.JupyterHub.trusted_alt_names = ["IP:10.0.0.1"]

# Login. The name that single sign-on gives must be the name on the cluster.
c.CarmeAuthenticator.authenticator_class = "generic-oauth"
c.CarmeAuthenticator.allowed_accounts = {"*"}  # whoever may charge some Slurm account
c.CarmeAuthenticator.role_groups = {"admin": {"hub-admins"}, "teacher": {"account:teaching"}}
c.GenericOAuthenticator.client_id = "carme-hub"
c.GenericOAuthenticator.client_secret = os.environ.get("OAUTH_CLIENT_SECRET", "")
c.GenericOAuthenticator.authorize_url = "https://sso.example.org/authorize"
c.GenericOAuthenticator.token_url = "https://sso.example.org/token"  # noqa: S105 - an address
c.GenericOAuthenticator.userdata_url = "https://sso.example.org/userinfo"
c.GenericOAuthenticator.username_claim = "preferred_username"
c.GenericOAuthenticator.oauth_callback_url = "https://hub.example.org/hub/oauth_callback"

# Slurm: the hub does not have its key, see docs/howto/submit-as-the-user.md.
c.CarmeSlurm.cluster = "mycluster"
c.CarmeSlurm.submit_via = "rest"
c.CarmeSlurm.rest_url = "unix:///run/slurmrestd/slurmrestd.sock"
c.CarmeSlurm.token_command = ["sudo", "-n", "/usr/local/libexec/carme-token", "token"]
c.CarmeSlurm.tail_command = ["sudo", "-n", "/usr/local/libexec/carme-token", "tail"]
c.CarmeSlurm.jobs_command = ["/usr/local/libexec/carme-jobs"]

# What is offered.
c.SlurmContainerSpawner.container_runtime = "apptainer"
c.SlurmContainerSpawner.container_binds = [("/scratch", "/scratch", "rw"), "/data"]
c.SlurmContainerSpawner.images = [
    {"name": "pytorch", "path": "/opt/images/pytorch.sif", "format": "sif", "description": "PyTorch 2"},
]
c.SlurmContainerSpawner.profile_list = [
    {
        "slug": "gpu",
        "display_name": "GPU",
        "description": "GPUs of one node.",
        "default": True,
        "partition": "gpu",
        "gpus": {"types": ["a100", "h100"], "min": 1, "max": 4, "default": 1},
        "cpus": {"min": 1, "max": 32, "default": 8},
        "memory_gib": {"min": 4, "max": 240, "default": 32},
        "time_minutes": {"min": 5, "max": 480, "default": 120},
    },
]
