"""A machine whose clock is wrong: on the path of a process, it moves that process's wall clock by `SKEW_S`."""

import os
import time

if _skew := float(os.environ.get("SKEW_S", "0")):
    _seconds, _nanoseconds = time.time, time.time_ns
    time.time = lambda: _seconds() + _skew
    time.time_ns = lambda: _nanoseconds() + int(_skew * 1e9)
