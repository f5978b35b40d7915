"""CarmeDockerSpawner."""
