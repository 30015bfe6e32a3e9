"""What `pip install` brings: the wheel, made from the source distribution, and the packages of a plain installation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from importlib import metadata
from pathlib import Path

from daemons import ROOT
from patience import patience

PURE = Path(sysconfig.get_path("purelib"))


def tree(folder: Path) -> Path:
    """Copy what is in the repository, or would be: building writes next to the sources."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and not name.startswith("tests/") and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def sdist(source: Path, into: Path) -> Path:
    hook = f"from setuptools import build_meta; build_meta.build_sdist({str(into)!r})"
    _run([sys.executable, "-W", "error", "-c", hook], source)
    (found,) = into.glob("*.tar.gz")
    return found


def wheel(archive: Path, into: Path) -> Path:
    with tarfile.open(archive) as file:
        file.extractall(into / "source", filter="data")
    (source,) = (into / "source").iterdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "--no-index"]
    _run([*pip, "--no-build-isolation", "-w", str(into), "."], source)
    (found,) = into.glob("*.whl")
    return found


def plain_packages(folder: Path, lock: str = "run") -> Path:
    """Fill a folder with links to the installed packages that a lock file names, and to no other."""
    folder.mkdir()
    names = re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / f"{lock}.txt").read_text(), re.MULTILINE)
    for name in names:
        files = metadata.distribution(name).files or []
        for top in {file.parts[0] for file in files if file.parts[0] not in {"..", "__pycache__"}}:
            if not (folder / top).exists():
                (folder / top).symlink_to(PURE / top)
    return folder


def _run(words: list[str], cwd: Path) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, timeout=patience(120))
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
