"""Tenants of the servers of vLLM and SGLang from authentication, as ASGI middleware."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import sha256
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

SOURCE = "SPECDS_TENANT_FROM"
"""The environment variable with the source of tenants: `api-key`, `header:NAME` or `body`."""
_OPTION = "specds_tenant"
_CARRIERS = ("vllm_xargs", "extra_args", "custom_params")


class AuthenticatedTenants:
    """Middleware that sets the tenant of each request, and removes the one that its body names.

    The tenant is the hash of the API key, which no file then has, or the value of a header that a
    proxy sets. A request without either has no tenant, so it is isolated. With the source `body`,
    clients are trusted and bodies are unchanged.

    Args:
        app: The application.
        carrier: The field of a request that has the options of specds.
        source: As `SOURCE`, from which it is read by default.

    Raises:
        ValueError: The source is unknown.
    """

    def __init__(self, app: App, carrier: str = "vllm_xargs", source: str | None = None) -> None:
        source = source or os.environ.get(SOURCE) or "api-key"
        kind, _, name = source.partition(":")
        if source not in ("api-key", "body") and not (kind == "header" and name):
            raise ValueError(f"{SOURCE} must be api-key, header:NAME or body, not {source}")
        self.app, self._carrier = app, carrier
        self._is_trusting = source == "body"
        self._header = name.lower().encode() if kind == "header" else None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] in ("POST", "PUT", "PATCH")
        if self._is_trusting or not is_post:
            await self.app(scope, receive, send)
            return
        tenant, is_received = self._tenant_of(scope["headers"]), False

        async def changed() -> Message:
            nonlocal is_received
            if is_received:
                return await receive()
            is_received, body, has_more = True, bytearray(), True
            while has_more:
                message = await receive()
                if message["type"] != "http.request":
                    return message
                body += message.get("body", b"")
                has_more = message.get("more_body", False)
            body_of = with_tenant(bytes(body), tenant, self._carrier)
            return {"type": "http.request", "body": body_of, "more_body": False}

        # The length of the body changes.
        lengths = (b"content-length", b"transfer-encoding")
        headers = [pair for pair in scope["headers"] if pair[0].lower() not in lengths]
        await self.app({**scope, "headers": headers}, changed, send)

    def _tenant_of(self, headers: Any) -> str:
        """Return the tenant; empty for none. Repeated headers are ambiguous, so they name none."""
        if self._header is not None:
            values = [value for name, value in headers if name.lower() == self._header]
            return values[0].decode("latin-1") if len(values) == 1 else ""
        values = [value for name, value in headers if name.lower() == b"authorization"]
        scheme, _, key = values[0].strip().partition(b" ") if len(values) == 1 else (b"", b"", b"")
        is_key = scheme.lower() == b"bearer" and key.strip()
        return f"key {sha256(key.strip()).hexdigest()[:32]}" if is_key else ""


def with_tenant(body: bytes, tenant: str, carrier: str) -> bytes:
    """Return a JSON body whose requests have this tenant and no other; another body as it is."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):  # the server's parser is the same, and reports it
        return body
    if not isinstance(asked, dict):
        return body
    try:
        _remove(asked)
        if tenant:
            for fields in _fields_of(asked, carrier):
                if fields.get(carrier) is None:
                    fields[carrier] = {}
                if isinstance(fields[carrier], dict):
                    fields[carrier][_OPTION] = tenant
        return json.dumps(asked).encode()
    except (ValueError, RecursionError):  # the body must not arrive with the client's tenant
        return b""


def _fields_of(asked: dict[str, Any], carrier: str) -> list[dict[str, Any]]:
    """Return the objects of a request that have the carrier; SGLang's own route has several."""
    params = asked.get("sampling_params")
    if carrier != "custom_params" or not ("text" in asked or "input_ids" in asked):
        return [asked]
    if params is None:
        params = asked["sampling_params"] = {}
    several = params if isinstance(params, list) else [params]
    return [each for each in several if isinstance(each, dict)]


def _remove(value: Any) -> None:
    """Remove the client's tenant from all carriers of a request."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            for name in _CARRIERS:
                if isinstance(part.get(name), dict):
                    part[name].pop(_OPTION, None)
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
