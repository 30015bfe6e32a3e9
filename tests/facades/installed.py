"""The client libraries, in environments of their own below CLIENTS_FOLDER; they are installed when versions change."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from shutil import which

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "clients"
FOLDER = os.environ.get("CLIENTS_FOLDER")
needs_clients = pytest.mark.skipif(not FOLDER, reason="CLIENTS_FOLDER says where client libraries are installed")
needs_npm = pytest.mark.skipif(not FOLDER or which("npm") is None, reason="needs CLIENTS_FOLDER, and npm")


@contextmanager
def _alone(name: str) -> Iterator[Path]:
    """Yield a folder for what is installed, while no other process of the tests installs there."""
    folder = Path(str(FOLDER)).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / name


@cache
def python() -> Path:
    """Return the interpreter of the environment with the clients for Python."""
    file = ROOT / "requirements" / "clients.txt"
    wanted = file.read_text()
    with _alone("python") as folder:
        stamp, found = folder / "installed.txt", folder / "bin" / "python"
        if not stamp.exists() or stamp.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([found, "-m", "pip", "install", "-q", "-r", file], check=True)
            stamp.write_text(wanted)
    return found


@cache
def modules() -> Path:
    """Return the folder with the packages of Node.js, and with our programs, which import them."""
    wanted = (HERE / "package-lock.json").read_text()
    with _alone("node") as folder:
        stamp = folder / "installed.json"
        if not stamp.exists() or stamp.read_text() != wanted:
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("package.json", "package-lock.json"):
                (folder / name).write_text((HERE / name).read_text())
            subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, check=True)
            stamp.write_text(wanted)
        for program in HERE.glob("*.mjs"):
            (folder / program.name).write_text(program.read_text())
    return folder
