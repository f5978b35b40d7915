"""The configuration of the sandbox's hub: as a real site's file, with the paths of one sandbox.

``carme-hub sandbox demo`` runs the hub with this file; CARME_SANDBOX_HUB names the facts that it reads.
"""

# ruff: noqa: F821  get_config is given by traitlets
import json
import os
import sys
from pathlib import Path
from typing import Any

import carme_hub
from carme_hub.containers.images import as_setting, read_image
from carme_hub.sandbox import disk_usage

c = get_config()  # type: ignore[name-defined]
facts = json.loads(Path(os.environ["CARME_SANDBOX_HUB"]).read_text(encoding="utf-8"))

# A safe site in one line; everything below differs from site to site. The services read this file, too.
c.CarmeQuotas.port = facts["ports"]["quotas"]
c.CarmeReservations.port = facts["ports"]["reservations"]
c.CarmeActivity.port = facts["ports"]["activity"]
c.CarmeImages.port = facts["ports"]["images"]
c.CarmeFolders.port = facts["ports"]["folders"]
c.CarmeFolders.roots = {"projects": facts["folders"]}
c.CarmeFolders.command = facts["folders_command"]
c.CarmeFolders.interval, c.CarmeFolders.drift_interval = 2, 10
c.CarmeFolders.end_sessions = True
switches: dict[str, Any] = {
    "quotas": True,
    "reservations": True,
    "activity": True,
    "images": True,
    "folders": "CARME_SANDBOX_FOLDERS" in os.environ,
    "json_logs": "CARME_SANDBOX_JSON_LOGS" in os.environ,
}
carme_hub.configure(c, state_folder=facts["folder"], **switches)
for service in c.JupyterHub.services:
    names = (
        "CARME_SANDBOX_CLASS_IMAGE",
        "CARME_SANDBOX_FOLDERS",
        "CARME_SANDBOX_HUB",
        "CARME_SANDBOX_IMAGES",
        "CARME_SANDBOX_JSON_LOGS",
        "CARME_SANDBOX_KEEP",
        "CARME_SANDBOX_LOOK",
        "CARME_SANDBOX_NODE_IMAGES",
        "CARME_SANDBOX_NO_SHOW",
        "CARME_SANDBOX_RUNTIME",
        "CARME_SANDBOX_SAMPLES",
    )
    service["environment"].update({name: os.environ[name] for name in names if name in os.environ})

# -- a sandbox upgrades with its code; a real site stops the hub and runs the upgrades by hand ------------------------
c.JupyterHub.upgrade_db = True
c.CarmeStore.upgrade = True

# -- where the hub listens: everything on loopback ------------------------------------------------------------------
c.JupyterHub.bind_url = f"http://127.0.0.1:{facts['ports']['public']}"
c.JupyterHub.hub_bind_url = f"https://127.0.0.1:{facts['ports']['hub']}"
c.ConfigurableHTTPProxy.api_url = f"https://127.0.0.1:{facts['ports']['proxy_api']}"
c.ConfigurableHTTPProxy.auth_token = os.environ.get("CONFIGPROXY_AUTH_TOKEN", "")  # the services do not need it

# -- Slurm: the hub has neither its key nor root --------------------------------------------------------------------
c.CarmeSlurm.cluster = facts["cluster"]
c.CarmeSlurm.slurm_prefix = facts["slurm_prefix"]
c.CarmeSlurm.slurm_conf = facts["slurm_conf"]
c.CarmeSlurm.submit_via = facts["submit_via"]
c.CarmeSlurm.rest_url = facts["rest_url"]
c.CarmeSlurm.token_command = facts["token_command"]
c.CarmeSlurm.tail_command = facts["tail_command"]
c.CarmeSlurm.jobs_command = facts["jobs_command"]

# -- GPU time: the service reads Slurm's accounting often, so that people see results soon ----------------------------
c.CarmeQuotas.policy_file = facts["policy"]
c.CarmeQuotas.interval = 10
c.CarmeQuotas.price_of_gpu_hour = "0.50"
c.CarmeQuotas.disk_usage_command = [sys.executable, "-I", disk_usage.__file__]

# -- the calendar: with two nodes of a type no fifth can stay free, and unused bookings are released soon --------------
c.CarmeReservations.share = 100
c.CarmeReservations.no_show = int(os.environ.get("CARME_SANDBOX_NO_SHOW", "120"))
c.CarmeReservations.interval = float(os.environ.get("CARME_SANDBOX_LOOK", "30"))
c.CarmeReservations.keep = os.environ.get("CARME_SANDBOX_KEEP", "auto")
c.CarmeReservations.licenses = {"a100": "gpu_a100", "h100": "gpu_h100"}  # where CARME_SANDBOX_KEEP is licenses

# -- what jobs use: the virtual GPUs have a driver whose numbers are forged (carme-hub sandbox gpu) -------------------
c.CarmeActivity.nvml_library = facts["nvml_library"]
c.CarmeActivity.interval = float(os.environ.get("CARME_SANDBOX_SAMPLES", "10"))

# -- images beside those of the list, where a test has a store ---------------------------------------------------------
c.CarmeImages.stores = os.environ.get("CARME_SANDBOX_IMAGES", "").split()
c.CarmeImages.node_store = os.environ.get("CARME_SANDBOX_NODE_IMAGES", "")
c.CarmeImages.interval = 5
c.CarmeImages.build_registries = os.environ.get("CARME_SANDBOX_REGISTRIES", "").split()
if "CARME_SANDBOX_CHANNEL" in os.environ:
    c.CarmeImages.build_channels = {"ours": os.environ["CARME_SANDBOX_CHANNEL"]}

# -- who may log in -------------------------------------------------------------------------------------------------
c.CarmeAuthenticator.authenticator_class = facts["login"]
c.CarmeAuthenticator.allowed_groups = {facts["group"]}
c.CarmeAuthenticator.role_groups = {"teacher": ["carme-teachers"], "admin": ["carme-admins"]}
c.PAMAuthenticator.open_sessions = False  # the hub is not root
c.PAMAuthenticator.service = "login"
if facts["login"] == "dummy":
    c.DummyAuthenticator.password = os.environ.get("CARME_SANDBOX_PASSWORD", "")

# -- what is offered ------------------------------------------------------------------------------------------------
spawner = c.SlurmContainerSpawner
spawner.virtual = True
spawner.ip = "127.0.0.1"
spawner.stop_grace = 2  # below the sandbox's KillWait, so that the batch script can tidy up
spawner.images = facts["images"]
if "CARME_SANDBOX_RUNTIME" in os.environ:  # of a test: traits of the spawner by name, and images
    for name, value in json.loads(os.environ["CARME_SANDBOX_RUNTIME"]).items():
        setattr(spawner, name, value)
spawner.profile_list = [
    {
        "slug": "cpu",
        "display_name": "CPU notebook",
        "description": "For reading, writing and small computations. Starts at once.",
        "default": True,
        "partition": "interactive",
        "cpus": {"min": 1, "max": 8, "default": 2},
        "memory_gib": {"min": 1, "max": 32, "default": 2},
        "time_minutes": {"min": 5, "max": 720, "default": 120},
    },
    {
        "slug": "a100",
        "display_name": "A100",
        "description": "One to four A100 on one node, for training.",
        "partition": "interactive",
        "gpus": {"types": ["a100"], "min": 1, "max": 4, "default": 1},
        "cpus": {"min": 1, "max": 32, "default": 4},
        "memory_gib": {"min": 2, "max": 60, "default": 8},
        "time_minutes": {"min": 5, "max": 480, "default": 120},
    },
    {
        "slug": "mig",
        "display_name": "Part of an H100 (MIG)",
        "description": "A slice of an H100 for development and courses.",
        "partition": "interactive",
        "gpus": {"types": ["1g.10gb", "3g.40gb"], "min": 1, "max": 1, "default": 1},
        "cpus": {"min": 1, "max": 8, "default": 2},
        "memory_gib": {"min": 1, "max": 16, "default": 4},
        "time_minutes": {"min": 5, "max": 480, "default": 120},
    },
    {
        "slug": "h100",
        "display_name": "H100",
        "description": "Up to four H100, for large models.",
        "partition": "interactive",
        "gpus": {"types": ["h100"], "min": 1, "max": 4, "default": 1},
        "cpus": {"min": 1, "max": 32, "default": 8},
        "memory_gib": {"min": 4, "max": 60, "default": 16},
        "time_minutes": {"min": 5, "max": 240, "default": 60},
    },
]

# -- the image of a class, where a test has one: sessions of one profile start with it --------------------------------
if "CARME_SANDBOX_CLASS_IMAGE" in os.environ:
    image = read_image(Path(os.environ["CARME_SANDBOX_CLASS_IMAGE"]))
    spawner.images = [*facts["images"], as_setting(image)]
    next(each for each in spawner.profile_list if each["slug"] == "h100")["images"] = [image.name]

# -- data on nodes: Slurm's Prolog and Epilog make and empty scratch folders, where they run as root ------------------
c.CarmeStaging.root = facts.get("scratch", "")
c.CarmeStaging.max_gib, c.CarmeStaging.default_gib = 20, 1
if "CARME_SANDBOX_RCLONE" in os.environ:
    c.CarmeStaging.rclone = os.environ["CARME_SANDBOX_RCLONE"]

# -- apps beside ours, where tests name some ------------------------------------------------------------------------
if "CARME_SANDBOX_APPS" in os.environ:
    c.CarmeApps.apps = json.loads(os.environ["CARME_SANDBOX_APPS"])

# -- a token for `make demo-check` and the tests, where one was made ------------------------------------------------
if "CARME_SANDBOX_CHECK_TOKEN" in os.environ:
    c.JupyterHub.services = [
        *c.JupyterHub.services,
        {"name": "sandbox-check", "api_token": os.environ["CARME_SANDBOX_CHECK_TOKEN"]},
    ]
    c.JupyterHub.load_roles = [
        *c.JupyterHub.load_roles,
        {
            "name": "sandbox-check",
            "scopes": [
                *("admin:users", "admin:servers", "access:servers", "tokens", "read:hub", "read:metrics", "proxy"),
                *("access:services!service=images", "custom:carme:images:nodes"),  # as nodes that keep copies have
            ],
            "services": ["sandbox-check"],
        },
    ]

# -- Prometheus, where a test brings one: as in docs/howto/watch.md ---------------------------------------------------
if "CARME_SANDBOX_PROMETHEUS_TOKEN" in os.environ:
    token = os.environ["CARME_SANDBOX_PROMETHEUS_TOKEN"]
    services = ("quotas", "reservations", "activity")
    scopes = ["read:metrics", *(f"access:services!service={name}" for name in services)]
    scopes += [f"custom:carme:{name}" for name in ("quota:read:group", "reservation:read:all", "activity:read:all")]
    c.JupyterHub.services = [*c.JupyterHub.services, {"name": "prometheus", "api_token": token}]
    role = {"name": "prometheus", "scopes": scopes, "services": ["prometheus"]}
    c.JupyterHub.load_roles = [*c.JupyterHub.load_roles, role]
