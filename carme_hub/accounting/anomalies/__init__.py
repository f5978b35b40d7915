"""Records of Slurm that look wrong, and what people decide on them."""
