"""Measuring: workloads, and the real path next to its peers."""
