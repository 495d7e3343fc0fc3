"""Dry runs of the real frameworks at a plan's world size: no GPU, one process, fake tensors, counted bytes."""
