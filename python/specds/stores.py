"""Stores that request caches on several machines share: object stores, and Redis or Valkey.

A store has objects that never change, and a head that is replaced only if no other process has
replaced it. The core checks what it reads. A client finds its credentials; no message has them.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import urlsplit

from specds._lazy import advising

_TIMEOUT_S = 10
_OBJECTS = ("s3", "gs", "az")


class StoreClient(Protocol):
    """A head and objects.

    Every call may fail, also after it has had its effect: with a `PermissionError`, a
    `FileNotFoundError` if there is no such bucket, or a `ConnectionError`.
    """

    def head(self, known: str | None) -> tuple[bytes | None, str] | None:
        """Return the head, or None for one of version `known`, and its version; None if missing."""

    def replace_head(self, head: bytes, before: str | None) -> str | None:
        """Replace the head of version `before`, or a missing one, and return its new version.

        Returns None if it has another version.
        """

    def get(self, name: str) -> bytes | None: ...

    def put(self, name: str, content: bytes) -> None: ...

    def delete(self, name: str) -> None: ...

    def list(self) -> list[str]: ...


@lru_cache(maxsize=16)
def open_store(url: str) -> StoreClient:
    """Return the store at a URL.

    Args:
        url: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, or
            `redis://HOST:PORT/DATABASE/PREFIX` (`rediss://` with TLS).

    Raises:
        ValueError: The URL has another form.
        ModuleNotFoundError: The client of the store is not installed.
    """
    scheme, _, rest = url.partition("://")
    kind = _Redis if scheme in ("redis", "rediss") else _Objects if scheme in _OBJECTS else None
    if kind is None:
        raise ValueError("must begin with s3://, gs://, az://, redis:// or rediss://")
    if kind is _Objects and any(character in rest for character in "@?#"):
        raise ValueError("must have no credentials and options: let its client find them")
    return kind(url)


def _failed(error: Exception) -> ConnectionError:
    """Return an error with the first line of a client's message, without queries (and keys)."""
    reason = re.sub(r"\?\S*", "", str(error).partition("\n")[0])
    return ConnectionError(f"the store failed ({type(error).__name__}: {reason})")


class _Objects:
    """Objects below a prefix of a bucket; the head is replaced by a conditional put."""

    def __init__(self, url: str) -> None:
        with advising():
            from obstore import exceptions
            from obstore.store import from_url
        self._errors: Any = exceptions
        try:
            self._store: Any = from_url(
                url, retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=_TIMEOUT_S)}
            )
        except self._errors.BaseError as error:
            raise ValueError(f"cannot be opened: {_failed(error)}") from None

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Raise the errors of the store, without those that answer a condition, as the system's."""
        of = self._errors
        try:
            yield
        except (of.AlreadyExistsError, of.NotModifiedError, of.PreconditionError):
            raise
        except (of.PermissionDeniedError, of.UnauthenticatedError):
            raise PermissionError("the store denies access") from None
        except (FileNotFoundError, of.BaseError) as error:
            # A list of a missing bucket is another error.
            if isinstance(error, FileNotFoundError) or "404 Not Found" in str(error):
                raise FileNotFoundError("there is no such bucket or object") from None
            raise _failed(error) from None

    def head(self, known: str | None) -> tuple[bytes | None, str] | None:
        options = {"if_none_match": json.loads(known)[0]} if known else None
        try:
            with self._calling():
                found = self._store.get("head", options=options)
                version = json.dumps([found.meta["e_tag"], found.meta["version"]])
                return bytes(found.bytes()), version
        except FileNotFoundError:
            return None
        except self._errors.NotModifiedError:
            return None, known or ""

    def replace_head(self, head: bytes, before: str | None) -> str | None:
        mode: Any = "create"
        if before is not None:
            version = zip(("e_tag", "version"), json.loads(before), strict=True)
            mode = {name: value for name, value in version if value is not None}
        try:
            with self._calling():
                put = self._store.put("head", head, mode=mode)
        except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
            return None
        return json.dumps([put["e_tag"], put["version"]])

    def get(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError), self._calling():
            return bytes(self._store.get(name).bytes())
        return None

    def put(self, name: str, content: bytes) -> None:
        with self._calling():
            self._store.put(name, content, mode="overwrite")

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError), self._calling():
            self._store.delete(name)

    def list(self) -> list[str]:
        with self._calling():
            found = [meta["path"] for batch in self._store.list() for meta in batch]
        return [name for name in found if name != "head"]


_REPLACE = """
local version = redis.call('HGET', KEYS[1], 'version') or ''
if version ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'head', ARGV[3])
return 1
"""


class _Redis:
    """A hash with the version, the head and the objects; a script replaces the head."""

    def __init__(self, url: str) -> None:
        with advising():
            import redis
        self._errors: Any = redis.exceptions
        try:
            parts = urlsplit(url)
            database, _, self._key = parts.path.lstrip("/").partition("/")
            if not self._key or not database.isdigit():
                raise ValueError
            self._redis: Any = redis.Redis.from_url(
                parts._replace(path=f"/{database}").geturl(),
                password=parts.password or os.environ.get("REDISCLI_AUTH"),
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
            )
        except ValueError:  # its message may have a part of a password
            form = "redis://HOST:PORT/DATABASE/PREFIX"
            raise ValueError(f"must be {form}; quote a password in it") from None
        self._replace = self._redis.register_script(_REPLACE)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        of = self._errors
        try:
            yield
        except (of.AuthenticationError, of.NoPermissionError):
            raise PermissionError("the store denies access") from None
        except of.RedisError as error:
            raise _failed(error) from None

    def head(self, known: str | None) -> tuple[bytes | None, str] | None:
        with self._calling():
            if known and self._redis.hget(self._key, "version") == known.encode():
                return None, known
            version, head = self._redis.hmget(self._key, ["version", "head"])
        return None if version is None else (head, version.decode())

    def replace_head(self, head: bytes, before: str | None) -> str | None:
        version = uuid.uuid4().hex
        with self._calling():
            done = self._replace(keys=[self._key], args=[before or "", version, head])
        return version if done else None

    def get(self, name: str) -> bytes | None:
        with self._calling():
            content: bytes | None = self._redis.hget(self._key, name)
        return content

    def put(self, name: str, content: bytes) -> None:
        with self._calling():
            self._redis.hset(self._key, name, content)

    def delete(self, name: str) -> None:
        with self._calling():
            self._redis.hdel(self._key, name)

    def list(self) -> list[str]:
        with self._calling():
            names = [name.decode() for name in self._redis.hkeys(self._key)]
        return [name for name in names if name not in ("head", "version")]
