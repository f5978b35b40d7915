"""CarmeDockerSpawner: each server is a session, and each session is one container of one Docker engine."""

from carme_hub.spawners.moved import moved

__getattr__ = moved(__name__, CarmeDockerSpawner="spawner")
