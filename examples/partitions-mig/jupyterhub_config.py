"""Several partitions, some of whose GPUs are divided (MIG), each with profiles of its own. README.md explains it."""

import carme_hub

c = get_config()  # type: ignore[name-defined]  # noqa: F821  given by traitlets

carme_hub.configure(c, state_folder="/var/lib/carme-hub")

# -- what is offered: a profile for each kind of work ------------------------------------------------------------------
c.SlurmContainerSpawner.images = [
    {"name": "default", "path": "/opt/images/default"},
    {"name": "training", "path": "/opt/images/training", "description": "PyTorch and Horovod"},
]
c.SlurmContainerSpawner.profile_list = [
    {
        "slug": "no-gpu",
        "display_name": "No GPU",
        "description": "For reading, writing and small computations. Starts at once.",
        "default": True,
        "partition": "cpu",
        "cpus": {"min": 1, "max": 8, "default": 2},
        "memory_gib": {"min": 1, "max": 16, "default": 4},
        "time_minutes": {"min": 15, "max": 720, "default": 240},
    },
    {
        "slug": "mig",
        "display_name": "Part of an H100",
        "description": "A slice of an H100 (MIG), for courses and for trying things out.",
        "partition": "mig",
        "gpus": {"types": ["1g.10gb", "3g.40gb"], "min": 1, "max": 1, "default": 1},
        "cpus": {"min": 1, "max": 8, "default": 4},
        "memory_gib": {"min": 2, "max": 32, "default": 8},
        "time_minutes": {"min": 15, "max": 480, "default": 120},
    },
    {
        "slug": "gpu",
        "display_name": "Whole GPUs",
        "description": "A100 or H100 of one node, for a working day at most.",
        "partition": "gpu",
        "gpus": {"types": {"a100": 4, "h100": 2}, "min": 1, "max": 4, "default": 1},
        "cpus": {"min": 1, "max": 32, "default": 8},
        "memory_gib": {"min": 4, "max": 60, "default": 16},
        "time_minutes": {"min": 15, "max": 600, "default": 120},
        "images": ["training", "default"],
    },
    {
        "slug": "long",
        "display_name": "Long trainings",
        "description": "Up to two days, for members of the account physics. Others' jobs may go first.",
        "partition": "long",
        "accounts": ["physics"],
        "gpus": {"types": ["a100"], "min": 1, "max": 4, "default": 4},
        "cpus": {"min": 1, "max": 32, "default": 16},
        "memory_gib": {"min": 4, "max": 60, "default": 32},
        "time_hours": {"min": 1, "max": 48, "default": 24},
        "images": ["training"],
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

c.CarmeAuthenticator.allowed_groups = {"gpu-users"}
