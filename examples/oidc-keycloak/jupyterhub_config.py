"""Single sign-on by Keycloak (OpenID Connect): members of one of its groups may use the hub. README.md explains it."""

import os

import carme_hub

c = get_config()  # type: ignore[name-defined]  # noqa: F821  given by traitlets

carme_hub.configure(c, state_folder="/var/lib/carme-hub")

# -- how people log in -------------------------------------------------------------------------------------------------
REALM = "https://sso.example.org/realms/cluster/protocol/openid-connect"

c.CarmeAuthenticator.authenticator_class = "generic-oauth"
c.GenericOAuthenticator.login_service = "Keycloak"
c.GenericOAuthenticator.client_id = "carme-hub"
# From the environment of the hub's unit. Services of the hub read this file without it, so it may be missing here.
c.GenericOAuthenticator.client_secret = os.environ.get("OAUTH_CLIENT_SECRET", "")
c.GenericOAuthenticator.oauth_callback_url = "https://hub.example.org/hub/oauth_callback"
c.GenericOAuthenticator.authorize_url = f"{REALM}/auth"
c.GenericOAuthenticator.token_url = f"{REALM}/token"
c.GenericOAuthenticator.userdata_url = f"{REALM}/userinfo"
c.GenericOAuthenticator.scope = ["openid", "profile"]
c.GenericOAuthenticator.username_claim = "preferred_username"  # must be the name on the cluster
c.GenericOAuthenticator.auth_state_groups_key = "oauth_user.groups"
# Keeps Keycloak's tokens, encrypted with JUPYTERHUB_CRYPT_KEY, so that it is asked again who somebody is.
c.Authenticator.enable_auth_state = True

# -- who may use the hub: nobody but the members of these groups of Keycloak -------------------------------------------
c.CarmeAuthenticator.login_groups = True
c.CarmeAuthenticator.allowed_groups = {"gpu-users"}
c.CarmeAuthenticator.role_groups = {"admin": {"hub-admins"}}

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
