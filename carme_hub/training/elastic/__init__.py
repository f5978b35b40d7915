"""Elastic runs: the number of ranks changes while they train. Horovod and torchrun know the same idea by this name."""
