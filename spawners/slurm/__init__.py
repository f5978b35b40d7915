"""SlurmContainerSpawner."""
