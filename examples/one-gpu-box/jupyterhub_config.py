"""One machine with GPUs and a Docker engine, no Slurm: the same form, profiles and logins (extra ``docker``).

docs/howto/one-gpu-box.md explains it.
"""

import carme_hub

c = get_config()  # type: ignore[name-defined]  # noqa: F821  given by traitlets

carme_hub.configure(c, state_folder="/var/lib/carme-hub", slurm=False)

c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.hub_bind_url = "http://172.30.0.1:8081"  # this machine's address in the containers' network

c.CarmeAuthenticator.allowed_groups = {"gpu-users"}

c.CarmeDockerSpawner.network_name = "carme"
c.CarmeDockerSpawner.system_users = True  # everybody's own uid and home folder

c.CarmeDockerSpawner.images = [
    {"name": "pytorch", "path": "registry.example.org/lab/pytorch:12", "format": "ref"},
    {"name": "plain", "path": "registry.example.org/lab/plain:3", "format": "ref", "description": "No GPU"},
]
# Without this list, the hub uses that of `nvidia-smi -L`.
c.CarmeDockerSpawner.gpus = [
    {"id": "GPU-00000000-0000-0000-0000-000000000001", "type": "a6000"},
    {"id": "GPU-00000000-0000-0000-0000-000000000002", "type": "a6000"},
]
c.CarmeDockerSpawner.profile_list = [
    {
        "slug": "gpu",
        "display_name": "GPU",
        "description": "One or two GPUs of this machine.",
        "default": True,
        "gpus": {"types": ["a6000"], "min": 1, "max": 2, "default": 1},
        "cpus": {"min": 1, "max": 16, "default": 4},
        "memory_gib": {"min": 4, "max": 120, "default": 16},
        "time_minutes": {"min": 5, "max": 480, "default": 120},
        "images": ["pytorch"],
    },
    {
        "slug": "cpu",
        "display_name": "No GPU",
        "description": "For reading, writing and small computations.",
        "cpus": {"min": 1, "max": 4, "default": 2},
        "memory_gib": {"min": 2, "max": 16, "default": 4},
        "time_minutes": {"min": 5, "max": 720, "default": 240},
        "images": ["plain", "pytorch"],
    },
]
