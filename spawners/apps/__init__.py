"""CarmeApps: programs of an image that a session serves as pages, such as TensorBoard."""
