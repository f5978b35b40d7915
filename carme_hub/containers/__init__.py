"""From a typed request to the argv of a container runtime."""
