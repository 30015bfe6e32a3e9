"""Every knob once: type, bounds, default, meaning."""
