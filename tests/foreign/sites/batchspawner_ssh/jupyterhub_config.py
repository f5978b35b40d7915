# The shape of github.com/vub-hpc/notebook-platform, jupyterhub/etc/jupyterhub/jupyterhub_config.py, commit f75a8c1db8f5:
# batchspawner, Slurm's commands over ssh, a login class of the file, a list of partitions, settings made by +=.
c.JupyterHub.bind_url = "https://0.0.0.0:8000"
c.JupyterHub.hub_ip = "0.0.0.0"
c.JupyterHub.hub_connect_ip = "hub.cluster.example.org"

# -----------------------------------------------------------------------------
# Login
# -----------------------------------------------------------------------------
from jupyterhub.auth import PAMAuthenticator


def shell_of(username):
    """Every user of the site has one shell."""
    return ["useradd", "--shell", "/bin/bash", "--no-create-home"]


class SiteAuthenticator(PAMAuthenticator):
    def add_system_user(self, user):
        self.add_user_cmd = shell_of(user.name)
        super().add_system_user(user)


# the site's own class does the login
c.JupyterHub.authenticator_class = SiteAuthenticator
c.LocalAuthenticator.create_system_users = True

# -----------------------------------------------------------------------------
# Jobs
# -----------------------------------------------------------------------------
import batchspawner

c.JupyterHub.spawner_class = "batchspawner.SlurmSpawner"
c.Spawner.http_timeout = 90

c.BatchSpawnerBase.req_partition = "cpu,gpu"
c.BatchSpawnerBase.req_runtime = "2:00:00"
c.BatchSpawnerBase.req_memory = "1G"
c.BatchSpawnerBase.req_nprocs = "1"

c.BatchSpawnerBase.req_prologue = """
module load JupyterHub/4.1.5
"""

c.SlurmSpawner.exec_prefix = "sudo -E -u {username} ssh "
c.SlurmSpawner.exec_prefix += "-o 'StrictHostKeyChecking no' "
c.SlurmSpawner.exec_prefix += "login.cluster.example.org "

c.SlurmSpawner.batch_query_cmd = r"squeue -h -j {job_id} -o \'%T %B\'"

passed = ["JUPYTERHUB_API_TOKEN", "JUPYTERHUB_API_URL", "JUPYTERHUB_USER"]
passed = " ".join([f'{name}="${{{name}@Q}}"' for name in passed])
passed = "{% raw %}env " + passed + "{% endraw %}"
c.SlurmSpawner.batch_submit_cmd = passed + " sbatch --parsable"

c.SlurmSpawner.req_srun = "srun --export=ALL"
c.SlurmSpawner.state_exechost_exp = r"\1.cluster.example.org"
