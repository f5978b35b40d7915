"""Jobs are submitted by slurmrestd, as their users, with tokens that a helper prints. README.md explains it."""

import carme_hub

c = get_config()  # type: ignore[name-defined]  # noqa: F821  given by traitlets

carme_hub.configure(c, state_folder="/var/lib/carme-hub")

# -- how jobs are submitted: docs/howto/submit-as-the-user.md. The hub does not get Slurm's key. -----------------------
c.CarmeSlurm.submit_via = "rest"
c.CarmeSlurm.rest_url = "unix:///run/slurmrestd/slurmrestd.sock"
c.CarmeSlurm.token_command = ["sudo", "-n", "/usr/local/libexec/carme-token", "token"]
c.CarmeSlurm.tail_command = ["sudo", "-n", "/usr/local/libexec/carme-token", "tail"]
c.CarmeSlurm.jobs_command = ["/usr/local/libexec/carme-jobs"]  # output of jobs; the page acts on jobs without it

# -- as on every site: docs/howto/real-site.md -------------------------------------------------------------------------
c.JupyterHub.bind_url = "https://:443"
c.JupyterHub.ssl_cert = "/etc/carme-hub/hub.pem"
c.JupyterHub.ssl_key = "/etc/carme-hub/hub.key"
c.JupyterHub.hub_bind_url = "https://10.0.0.1:8081"  # this machine, as compute nodes reach it
c.JupyterHub.trusted_alt_names = ["IP:10.0.0.1"]
c.CarmeSlurm.cluster = "mycluster"

c.CarmeAuthenticator.allowed_groups = {"gpu-users"}
c.SlurmContainerSpawner.images = [{"name": "default", "path": "/opt/images/default"}]
c.SlurmContainerSpawner.profile_list = [{"slug": "a100", "display_name": "A100", "gpus": {"types": ["a100"], "max": 4}}]
