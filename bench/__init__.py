"""Benchmarks: workloads, and the real path compared with its peers."""
