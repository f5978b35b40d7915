"""The templates, their gallery, and the kernels that they need."""
