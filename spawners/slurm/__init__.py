"""SlurmContainerSpawner: each server is a session, and each session is one Slurm job."""

from carme_hub.spawners.moved import moved

__getattr__ = moved(__name__, SlurmContainerSpawner="spawner")
