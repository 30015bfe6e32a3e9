"""Bytes of the outside world that several rooms speak. Pure: no disk, no configuration, no room of ours."""
