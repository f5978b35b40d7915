"""Classes: lecturers book GPUs for a group, whose members have small sessions and a quota. README.md explains it."""

from pathlib import Path

import carme_hub

c = get_config()  # type: ignore[name-defined]  # noqa: F821  given by traitlets

carme_hub.configure(c, state_folder="/var/lib/carme-hub", quotas=True, reservations=True, activity=True)

# -- who teaches, and who learns: groups of the system -----------------------------------------------------------------
c.CarmeAuthenticator.allowed_groups = {"gpu-users", "course-ml"}
c.CarmeAuthenticator.role_groups = {"admin": {"hub-admins"}, "teacher": {"lecturers"}}

# -- what they may: policy.yaml beside this file. An administrator's page writes it, so it is the hub's user's. -------
c.CarmeQuotas.policy_file = str(Path(__file__).with_name("policy.yaml"))
c.CarmeReservations.no_show = 1200  # seconds after which a class that did not come gives its GPUs back
c.CarmeReservations.share = 50  # percent of each type that may be booked at one time

# -- what is offered ---------------------------------------------------------------------------------------------------
c.SlurmContainerSpawner.images = [{"name": "course-ml", "path": "/opt/images/course-ml"}]
c.SlurmContainerSpawner.profile_list = [
    {
        "slug": "class",
        "display_name": "Class",
        "description": "One GPU for an exercise. During a class it starts in the class' booking.",
        "default": True,
        "partition": "gpu",
        "gpus": {"types": ["a100"], "min": 1, "max": 1, "default": 1},
        "cpus": 4,
        "memory_gib": 8,
        "time_minutes": {"min": 15, "max": 120, "default": 90},
    },
    {
        "slug": "project",
        "display_name": "Project",
        "description": "Several GPUs, for those who do research here.",
        "partition": "gpu",
        "groups": ["gpu-users"],
        "gpus": {"types": ["a100"], "min": 1, "max": 4, "default": 1},
        "cpus": {"min": 1, "max": 32, "default": 8},
        "memory_gib": {"min": 4, "max": 60, "default": 16},
        "time_minutes": {"min": 15, "max": 600, "default": 120},
    },
]

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
