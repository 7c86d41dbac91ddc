"""Clients of the stores at URLs, which the core calls as its `ObjectStore`.

Request caches on several machines share them. The core checks what it reads. A client finds its
credentials; no message has them.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from specds._lazy import advising

_TIMEOUT = timedelta(seconds=10)
_DENIED = {
    *("PermissionDeniedError", "UnauthenticatedError"),
    *("AuthenticationError", "NoPermissionError"),
}


def open_store(url: str) -> _Objects | _Redis:
    """Return a store of a request cache. Its calls may fail, also after they have had their effect.

    Args:
        url: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, or
            `redis://HOST:PORT/DATABASE/PREFIX` (`rediss://` with TLS).

    Raises:
        ValueError: The URL has another form.
        ModuleNotFoundError: The client is not installed.
    """
    scheme, _, rest = url.partition("://")
    if scheme in ("redis", "rediss"):
        return _Redis(url)
    if scheme not in ("s3", "gs", "az"):
        raise ValueError("must begin with s3://, gs://, az://, redis:// or rediss://")
    if any(character in rest for character in "@?#"):
        raise ValueError("must have no credentials and options: let its client find them")
    bucket, _, prefix = rest.strip("/").partition("/")
    return _Objects(f"{scheme}://{bucket}", prefix)


def failure(error: Exception) -> OSError:
    """Return the error of a client as one of the system: by its first line, without queries."""
    reason = re.sub(r"\?\S*", "", str(error).partition("\n")[0])
    name = type(error).__name__
    if name in _DENIED:
        return PermissionError("the store denies access")
    # A list of a missing bucket is another error.
    if isinstance(error, FileNotFoundError) or "404 Not Found" in reason:
        return FileNotFoundError("no such bucket or object")
    return ConnectionError(f"the store failed ({name}: {reason})")


@lru_cache(maxsize=16)
def bucket_client(url: str) -> Any:
    """Return the client of a bucket, which all stores in it share."""
    with advising():
        from obstore import exceptions
        from obstore.store import from_url
    try:
        return from_url(url, retry_config={"max_retries": 2, "retry_timeout": _TIMEOUT})
    except exceptions.BaseError as error:
        raise ValueError(f"cannot be opened: {failure(error)}") from None


class _Objects:
    """Objects below a prefix; the head is replaced by a conditional put."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._store = bucket_client(bucket)
        self._prefix = f"{prefix}/" if prefix else ""
        from obstore import exceptions

        self._errors: Any = exceptions

    def below(self, name: str) -> _Objects:
        return _Objects(self._bucket, self._prefix + name)

    def head(self, known: str | None) -> tuple[bytes | None, str] | None:
        options = {"if_none_match": json.loads(known)[0]} if known else None
        try:
            found = self._store.get(f"{self._prefix}head", options=options)
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
        with suppress(self._errors.AlreadyExistsError, self._errors.PreconditionError):
            put = self._store.put(f"{self._prefix}head", head, mode=mode)
            return json.dumps([put["e_tag"], put["version"]])
        return None

    def get(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return bytes(self._store.get(self._prefix + name).bytes())
        return None

    def put(self, name: str, content: bytes) -> None:
        self._store.put(self._prefix + name, content, mode="overwrite")

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._store.delete(self._prefix + name)

    def stores(self) -> list[str]:
        found = (meta["path"] for batch in self._store.list(self._prefix) for meta in batch)
        names = (path[len(self._prefix) :] for path in found)
        return [name.removesuffix("/head") for name in names if name.endswith("/head")]

    def list(self) -> list[str]:
        found = self._store.list_with_delimiter(self._prefix)["objects"]
        names = [meta["path"].rpartition("/")[2] for meta in found]
        return [name for name in names if name != "head"]


_REPLACE = """
local version = redis.call('HGET', KEYS[1], 'version') or ''
if version ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'head', ARGV[3])
return 1
"""


@lru_cache(maxsize=16)
def redis_client(url: str) -> Any:
    """Return the client of a database, which all stores in it share."""
    with advising():
        from redis import Redis
    timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _TIMEOUT.seconds)
    password = urlsplit(url).password or os.environ.get("REDISCLI_AUTH")
    return Redis.from_url(url, password=password, **timeouts)


class _Redis:
    """A hash with the version, the head and the objects; a script replaces the head."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        try:
            parts = urlsplit(url)
            database, _, key = parts.path.lstrip("/").partition("/")
            self._key = key.rstrip("/")
            if not self._key or not database.isdigit():
                raise ValueError
            self._redis = redis_client(parts._replace(path=f"/{database}").geturl())
        except ValueError:  # its message may have a part of a password
            form = "redis://HOST:PORT/DATABASE/PREFIX"
            raise ValueError(f"must be {form}; quote a password in it") from None
        self._replace = self._redis.register_script(_REPLACE)

    def below(self, name: str) -> _Redis:
        return _Redis(f"{self._url}/{name}")

    def head(self, known: str | None) -> tuple[bytes | None, str] | None:
        if known and self._redis.hget(self._key, "version") == known.encode():
            return None, known
        version, head = self._redis.hmget(self._key, ["version", "head"])
        return None if version is None else (head, version.decode())

    def replace_head(self, head: bytes, before: str | None) -> str | None:
        version = uuid.uuid4().hex
        done = self._replace(keys=[self._key], args=[before or "", version, head])
        return version if done else None

    def get(self, name: str) -> bytes | None:
        content: bytes | None = self._redis.hget(self._key, name)
        return content

    def put(self, name: str, content: bytes) -> None:
        self._redis.hset(self._key, name, content)

    def delete(self, name: str) -> None:
        self._redis.hdel(self._key, name)

    def stores(self) -> list[str]:
        start = f"{self._key}/".encode()
        keys = set(self._redis.scan_iter(re.sub(rb"([*?\[\]\\])", rb"\\\1", start) + b"*"))
        hashes = [key for key in sorted(keys) if self._redis.type(key) == b"hash"]
        return [key[len(start) :].decode() for key in hashes]

    def list(self) -> list[str]:
        names = [name.decode() for name in self._redis.hkeys(self._key)]
        return [name for name in names if name not in ("head", "version")]
