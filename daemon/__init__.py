"""How the world gets in and how we leave: bus, socket, logs, systemd, command line, the wiring."""

VERSION = "0.1.0"
PROTOCOL = 1
