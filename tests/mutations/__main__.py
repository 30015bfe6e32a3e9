"""Apply the mutations one by one to a copy of the repository, and say which of them its tests catch."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from time import monotonic

from mutations.patches import ROOT, Mutation, load

CAUGHT, SURVIVED, UNCLEAR = "caught", "SURVIVED", "UNCLEAR"
_LONGEST_S = 600.0  # for the tests of one mutation


class Tree:
    """A copy of the repository in which one mutation at a time is tried."""

    def __init__(self, folder: Path) -> None:
        """Copy what git would commit now."""
        self.root = folder / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Apply a mutation, and revert it."""
        file = self.root / mutation.file
        text = file.read_text()
        self._write(file, text.replace(mutation.old, mutation.new))
        try:
            yield
        finally:
            self._write(file, text)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()  # files of one size, written in one second, look alike to the interpreter

    def test(self, tests: Sequence[str]) -> tuple[str, str]:
        """Run tests until one fails; return the verdict, and the name of the test or what happened in its place."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--hypothesis-profile=unshrunk",
        ]
        process = subprocess.Popen(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": ""},  # to compile once
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            reported, _ = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return UNCLEAR, f"the tests did not end in {_LONGEST_S:g} s"
        lines = reported.splitlines()
        failed = next((line for line in reversed(lines) if line.startswith(("FAILED ", "ERROR "))), "")
        if process.returncode == 0:
            return SURVIVED, lines[-1] if lines else ""
        if process.returncode == 1 and failed:
            return CAUGHT, failed.removeprefix("FAILED ").removeprefix("ERROR ").partition(" - ")[0]
        return UNCLEAR, "\n".join(lines[-15:])


def main() -> int:
    """Run what the arguments ask for; return the exit code."""
    parser = argparse.ArgumentParser(prog="tests/mutations/run", description=__doc__)
    parser.add_argument("names", nargs="*", default=["*"], help="areas, or names such as history/3; else all")
    parser.add_argument("-n", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--whole", action="store_true", help="run the whole suite for what its own tests do not catch")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a mutation first")
    requests = parser.parse_args()
    chosen = {
        name: mutation
        for name, mutation in load().items()
        if any(fnmatch(name, pattern) or name.startswith(f"{pattern}/") for pattern in requests.names)
    }
    places = {name: mutation.place(ROOT) for name, mutation in chosen.items()}
    if requests.list or not chosen:
        for name, mutation in chosen.items():
            print(f"{name:14} {places[name]}: {mutation.breaks}")
        return 0 if chosen else 2
    return run(chosen, places, requests.n, whole=requests.whole, trusts=requests.trust)


def run(chosen: dict[str, Mutation], places: dict[str, str], at_once: int, *, whole: bool, trusts: bool) -> int:
    """Try mutations; return 0 if every one is caught."""
    with TemporaryDirectory(prefix="mutations-") as folder, ThreadPoolExecutor(at_once) as threads:
        trees = SimpleQueue[Tree]()
        for n in range(at_once):
            trees.put(Tree(Path(folder) / str(n)))

        def tried(tests: Sequence[str], mutation: Mutation | None = None) -> tuple[str, str, float]:
            tree, began = trees.get(), monotonic()
            try:
                if mutation is None:
                    return *tree.test(tests), monotonic() - began
                with tree.mutated(mutation):
                    verdict, why = tree.test(tests)
                    if verdict == SURVIVED and whole:
                        verdict, why = tree.test([""])
                return verdict, why, monotonic() - began
            finally:
                trees.put(tree)

        if not trusts:
            files = sorted({test for mutation in chosen.values() for test in mutation.tests})
            broken = [
                (file, why)
                for file, (verdict, why, _) in zip(files, threads.map(lambda file: tried([file]), files), strict=True)
                if verdict != SURVIVED
            ]
            for file, why in broken:
                print(f"{file} fails without a mutation: {why}")
            if broken:
                return 2
        counts = dict.fromkeys((CAUGHT, SURVIVED, UNCLEAR), 0)
        results = threads.map(lambda mutation: tried(mutation.tests, mutation), chosen.values())
        for (name, mutation), (verdict, why, took_s) in zip(chosen.items(), results, strict=True):
            counts[verdict] += 1
            print(f"{name:14} {verdict:8} {took_s:5.1f} s  {places[name]}: {mutation.breaks}\n{'':25}{why}", flush=True)
    print(", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items()))
    return 0 if counts[CAUGHT] == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
