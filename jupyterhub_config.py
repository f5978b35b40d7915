"""A site's jupyterhub_config.py: copy it, and put your own names in. docs/howto/real-site.md goes through it.

It starts on no machine as it stands: `carme-hub doctor --config jupyterhub_config.py` says what it lacks.
"""

import carme_hub

c = get_config()  # type: ignore[name-defined]  # noqa: F821  given by traitlets

# Safe defaults for everything, with databases and secrets in one private folder. Whatever is set below counts more.
carme_hub.configure(c, state_folder="/var/lib/carme-hub")

c.JupyterHub.bind_url = "http://127.0.0.1:8000"  # behind a web server that speaks TLS
c.JupyterHub.hub_bind_url = "https://10.0.0.1:8081"  # an address of this machine that compute nodes reach
c.JupyterHub.trusted_alt_names = ["IP:10.0.0.1"]  # the same: the hub's certificate names it

c.CarmeAuthenticator.allowed_groups = {"gpu-users"}
c.CarmeAuthenticator.role_groups = {"admin": {"hub-admins"}, "operator": {"hub-operators"}, "teacher": {"lecturers"}}

c.CarmeSlurm.cluster = "mycluster"  # ClusterName of slurm.conf
c.CarmeSlurm.submit_via = "sudo"
c.CarmeSlurm.submit_command = ["/usr/local/libexec/carme-submit"]
c.CarmeSlurm.jobs_command = ["/usr/local/libexec/carme-jobs"]

c.SlurmContainerSpawner.images = [{"name": "default", "path": "/opt/carme-hub/images/default"}]
c.SlurmContainerSpawner.profile_list = [
    {
        "slug": "a100",
        "display_name": "A100",
        "description": "One to four A100 on one node.",
        "default": True,
        "partition": "gpu",
        "gpus": {"types": ["a100"], "min": 1, "max": 4, "default": 1},
        "cpus": {"min": 1, "max": 32, "default": 8},
        "memory_gib": {"min": 4, "max": 240, "default": 32},
        "time_minutes": {"min": 5, "max": 480, "default": 120},
    },
]
