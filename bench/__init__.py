"""Measuring: workloads, and the real path beside its peers."""
