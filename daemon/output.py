"""Standard output whose failure ends a command with a one-line error: a full disk is not a bug."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NAME = "standard output"
_STDOUT = 1


class Output(io.FileIO):
    """The descriptor of standard output. Its first error is raised, and names it; later output is dropped.

    Otherwise what is left in the buffer would fail again when the process ends, with a traceback and exit code 120.
    """

    _failed = False

    def write(self, data: ReadableBuffer) -> int:
        """Write some of the data.

        Raises:
            BrokenPipeError: the reader has closed the pipe.
            OSError: it can't be written.
        """
        if self._failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except BrokenPipeError:
            self._failed = True
            raise
        except OSError as error:
            self._failed = True
            raise OSError(error.errno, error.strerror, _NAME) from error


@contextmanager
def output_speaks(code: int) -> Iterator[None]:
    """Write to standard output through `Output`; turn its failure into one line and an exit code."""
    before = sys.stdout
    if (
        isinstance(before, io.TextIOWrapper) and before is sys.__stdout__
    ):  # otherwise its descriptor is closed, or belongs to the caller
        raw = io.BufferedWriter(Output(_STDOUT, "wb", closefd=False))
        terminal = before.isatty()
        sys.stdout = io.TextIOWrapper(raw, before.encoding, before.errors, line_buffering=terminal)
    try:
        yield
    except OSError as error:
        if error.filename != _NAME:
            raise
        click.echo(f"Error: {_NAME}: {error.strerror}", err=True)
        sys.exit(code)
