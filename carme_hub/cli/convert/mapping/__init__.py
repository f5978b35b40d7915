"""What becomes of each setting, one module for each program that a site comes from."""
