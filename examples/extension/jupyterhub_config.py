"""Uses one extension of each kind, on top of the shortest configuration of a cluster."""

import carme_hub

c = get_config()  # noqa: F821

carme_hub.configure(c, state_folder="/var/lib/carme-hub", quotas=True)

c.SlurmContainerSpawner.container_runtime = "singularity"

c.CarmeAuthenticator.allowed_groups = {"gpu-users"}
c.CarmeAuthenticator.login_policies = ["signed-rules"]
c.SignedRules.file = "/etc/carme-hub/signed-rules"

c.CarmeQuotas.policy_rules = ["small-by-day"]
c.CarmeQuotas.notice_channels = ["chat"]
c.Chat.url_file = "/etc/carme-hub/chat-url"

c.CarmeApps.offered = ["tensorboard", "templates", "hello"]

c.SlurmContainerSpawner.images = [{"name": "lab", "path": "/opt/images/lab.sif", "format": "sif"}]
a100 = {"display_name": "A100", "gpus": {"types": ["a100"], "max": 8}, "fields": ["dataset"]}
c.SlurmContainerSpawner.profile_list = [a100]
