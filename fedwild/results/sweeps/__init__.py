"""Sweeps: runs of one config with varied settings and seeds, and their comparison."""
