"""Training templates; each module is the script of one template."""
