"""Blobs in an S3 bucket, or in a compatible store.

Endpoint, region and credentials are the environment's, as obstore reads them: AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_ALLOW_HTTP, AWS_CONDITIONAL_PUT, ...
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import S3Store

from storage.blobname import LEFTOVER, LEFTOVER_S, NAME, checked, leftover
from storage.errors import BlobFailed

MIB = 1 << 20
PART = 16 * MIB  # a longer object is uploaded in parts of this size
FRESH_S = 600.0  # an older blob that put finds is written again: no sweep may take it for an orphan
_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


class Bucket:
    """Blobs as objects of an S3 bucket, below a prefix.

    A request to a server that does not answer fails after `patience_s` seconds; what is safe to repeat begins up to
    three times within them, so that such a call takes at most twice as long.
    """

    def __init__(self, bucket: str, prefix: str, *, patience_s: float = 20.0) -> None:
        self._where = f"s3://{bucket}/{prefix}".rstrip("/")
        self._conditional = True
        with self._errors("open"):
            self._store = S3Store(
                bucket,
                prefix=prefix or None,
                config={"disable_bulk_delete": True},  # not every server has it
                client_options={
                    "allow_http": _http_allowed(self._where),
                    "connect_timeout": timedelta(seconds=min(5.0, patience_s)),
                    "read_timeout": timedelta(seconds=patience_s),
                    "timeout": timedelta(minutes=10),
                },
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=patience_s)},
            )

    def put(self, name: str, data: bytes) -> None:
        """See `Blobs.put`. Where the server has no conditional put, a blob that is there is written again."""
        checked(name)
        with self._errors("put", name):
            if len(data) > PART:
                self._put_long(name, data)
            else:
                self._put(name, data)

    def get(self, name: str) -> bytes | None:
        """See `Blobs.get`."""
        checked(name)
        with self._errors("get", name):
            try:
                return obstore.get(self._store, name).bytes().to_bytes()
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def delete(self, name: str) -> bool:
        """See `Blobs.delete`."""
        checked(name)
        with self._errors("delete", name):
            if self._age(name) is None:
                return False
            obstore.delete(self._store, name)
        return True

    def names(self) -> Iterator[tuple[str, float]]:
        """See `Blobs.names`. The ages are right as far as the server's clock and ours agree."""
        with self._errors("list"):
            for page in obstore.list(self._store, chunk_size=1000):
                for found in page:
                    name, age = found["path"], max(0.0, time.time() - found["last_modified"].timestamp())
                    if NAME.fullmatch(name):
                        yield name, age
                    elif LEFTOVER.fullmatch(name) and age > LEFTOVER_S:
                        obstore.delete(self._store, name)

    def check(self) -> None:
        """See `Blobs.check`."""
        probe, data = leftover("check"), secrets.token_bytes(64)
        with self._errors("check"):
            obstore.put(self._store, probe, data)
            read = obstore.get(self._store, probe).bytes().to_bytes()
            next(iter(obstore.list(self._store, chunk_size=1)), None)
            obstore.delete(self._store, probe)
        if read != data:
            raise BlobFailed(f"{self._where}: the content that was read back differs from what was written")

    def _put(self, name: str, data: bytes) -> None:
        if self._conditional:
            try:
                obstore.put(self._store, name, data, mode="create")
                return
            except AlreadyExistsError:
                age = self._age(name)
                if age is not None and age < FRESH_S:
                    return
            except NotImplementedError:  # AWS_CONDITIONAL_PUT=disabled
                self._conditional = False
            except GenericError as error:
                if "501 Not Implemented" not in str(error):
                    raise
                self._conditional = False
        obstore.put(self._store, name, data, mode="overwrite", use_multipart=False)

    def _put_long(self, name: str, data: bytes) -> None:
        """Put an object in parts; it appears when all are there. That cannot be made conditional, so check first."""
        age = self._age(name)
        if age is None or age >= FRESH_S:
            obstore.put(self._store, name, data, use_multipart=True, chunk_size=PART, max_concurrency=2)

    def _age(self, name: str) -> float | None:
        try:
            return time.time() - obstore.head(self._store, name)["last_modified"].timestamp()
        except FileNotFoundError:
            return None

    @contextmanager
    def _errors(self, deed: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, NotImplementedError, ValueError) as error:
            raise BlobFailed(f"{self._where}: cannot {deed}{name and f' {name}'}: {_reason(error)}") from error


def _http_allowed(where: str) -> bool:
    """Return whether the endpoint may be used without TLS; raise if it is malformed, because obstore does not."""
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true", "on", "yes", "y"}
    for name in _ENDPOINTS:
        text = os.environ.get(name)
        if text is None:
            continue
        try:
            url = urlsplit(text)
            good = url.scheme in {"http", "https"} and bool(url.hostname) and (url.port or 1) > 0 and text.isprintable()
        except ValueError:
            good = False
        if not good or " " in text:
            raise BlobFailed(f"{where}: {name} is not an http or https URL: {text!r}")
        if url.scheme == "http" and not allowed:
            raise BlobFailed(f"{where}: {name} is not https: set AWS_ALLOW_HTTP=true if this is intended")
    return allowed


def _reason(error: Exception) -> str:
    """Return one line for an error of obstore, which has many: the server's answer or the system's, and the request."""
    text, _, detail = str(error).partition("\n\nDebug source")
    request = " ".join(text.partition("<?xml")[0].split()).rstrip(": ")
    answers = re.findall(r"<(?:Code|Message)>([^<]*)</", text)
    causes = re.findall(r'(?:message|error): "([^"]*)"|source: (TimedOut)\b', detail)
    reason = ": ".join(answers) or next((message or "it took too long" for message, _ in reversed(causes)), "")
    hint = (
        " (AWS_ACCESS_KEY_ID is not set)" if "/latest/api/token" in request else ""
    )  # otherwise it queries the machine for its own
    return " ".join(f"{request}: {reason}".split() if reason else [request]) + hint
