"""Both databases, the hub's and Carme Hub's own, are in PostgreSQL. README.md explains it."""

import carme_hub

c = get_config()  # type: ignore[name-defined]  # noqa: F821  given by traitlets

carme_hub.configure(c, state_folder="/var/lib/carme-hub", quotas=True)

# -- where the databases are: two, never the same one. The password is in ~/.pgpass of the hub's user. -----------------
c.JupyterHub.db_url = "postgresql+psycopg://carme@db.example.org/jupyterhub"
c.JupyterHub.db_kwargs = {}  # configure(c) has set what SQLite needs
c.CarmeStore.url = "postgresql+psycopg://carme@db.example.org/carme"

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

c.CarmeAuthenticator.allowed_groups = {"gpu-users"}
c.SlurmContainerSpawner.images = [{"name": "default", "path": "/opt/images/default"}]
c.SlurmContainerSpawner.profile_list = [{"slug": "a100", "display_name": "A100", "gpus": {"types": ["a100"], "max": 4}}]
