"""CarmeApps: programs of an image as pages of its session."""
