"""The settings: type, bounds, default, meaning."""
