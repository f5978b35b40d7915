# The shape of github.com/vub-hpc/notebook-platform, jupyterhub/container/.config/jupyterhub_config.py, commit
# 28dd8175ddec: jupyterhub_moss with a spawner class of the site, environments shared by partitions, partitions in a name.
c.JupyterHub.bind_url = "https://0.0.0.0:8000"
c.JupyterHub.hub_ip = "0.0.0.0"

from jupyterhub_moss import MOSlurmSpawner, set_config
from traitlets import default


class SiteSpawner(MOSlurmSpawner):
    """Homes are where the site's directory says."""

    @default("req_homedir")
    def home_of_the_directory(self):
        return f"/home/{self.user.name}"

    def user_env(self, env):
        env["SHELL"] = "/bin/bash"
        return env


set_config(c)
c.JupyterHub.spawner_class = SiteSpawner
c.Spawner.start_timeout = 600  # from the job's submission to its start
c.Spawner.http_timeout = 120

environments = {
    "2022_default": {
        "description": "2022a: Python 3.10 (default)",
        "modules": "JupyterHub/2.3.1",
        "path": "",
        "add_to_path": False,
    },
    "2022_rstudio": {
        "description": "2022a: Python 3.10 and RStudio",
        "modules": (
            "JupyterHub/2.3.1 "
            "RStudio-Server/2022.07.2 "
        ),
        "path": "",
        "add_to_path": False,
    },
    "shared": {
        "description": "The group's own",
        "path": "/shared/jupyter/bin/",
        "modules": "",
        "prologue": "echo starting",
    },
}

partitions_of_one = {
    "cpu": {
        "architecture": "x86_86",
        "description": "Processors",
        "max_runtime": 12*3600,
        "simple": True,
        "jupyter_environments": environments,
    },
    "gpu": {
        "architecture": "CUDA",
        "description": "Accelerators",
        "gpu": "gpu:a100:{}",
        "max_ngpus": 2,
        "max_nprocs": 8,
        "max_runtime": 6*3600,
        "simple": False,
        "jupyter_environments": environments,
    },
}
partitions_of_other = {"old": {"architecture": "x86_86", "description": "Old", "jupyter_environments": environments}}

c.MOSlurmSpawner.partitions = partitions_of_one

c.BatchSpawnerBase.req_prologue = """
function passed(){
    for pattern in $@; do
        env | grep "$pattern"
    done
}
exec env -i bash --norc --noprofile <<EOF
$(passed HOME SLURM)
source /etc/profile
"""
c.BatchSpawnerBase.req_epilogue = """
EOF
"""

c.SlurmSpawner.exec_prefix = "ssh login.example.org "
c.SlurmSpawner.exec_prefix += "SLURM_CLUSTERS=hydra SLURM_CONF=/etc/slurm/slurm.conf "
c.SlurmSpawner.exec_prefix += "sudo -u {username} "
c.SlurmSpawner.batch_cancel_cmd = "scancel {{job_id}} "
c.SlurmSpawner.batch_query_cmd = r"squeue -h -j {{job_id}} -o \'%T %B\' "
c.MOSlurmSpawner.slurm_info_cmd = r"sinfo -a --noheader -o \'%R %D %C %G %m\'"
c.SlurmSpawner.req_srun = ""
c.SlurmSpawner.state_exechost_exp = r"\1.hydra.example.org"

c.JupyterHub.template_paths = ["/srv/site/templates"]
