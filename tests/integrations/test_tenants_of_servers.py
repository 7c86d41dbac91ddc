"""Tenants from authentication, in front of a small ASGI application."""

import asyncio
import json

import pytest

from specds.integrations.openai import PredictedOutput
from specds.integrations.tenants import SOURCE, AuthenticatedTenants

CHAT, CLAIMED = "/v1/chat/completions", {"specds_tenant": "ann", "specds_group": "g"}
BODY = {"model": "m", "vllm_xargs": CLAIMED}
OF_KEY = "key 2c70e12b7a0646f92279f427c7b38e73"


def received(body, headers=(), path=CHAT, make=AuthenticatedTenants, **options):
    """Return the body that the server gets."""
    seen = []

    async def app(scope, receive, send):
        seen.append((await receive())["body"])
        assert not any(name == b"content-length" for name, _ in scope["headers"])

    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    parts = [body[:9], body[9:]]
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        return messages.pop(0)

    given = [(b"Content-Length", b"%d" % len(body)), *headers]
    given = [(name.lower(), value) for name, value in given]
    scope = {"type": "http", "method": "POST", "path": path, "headers": given}
    asyncio.run(make(app, **options)(scope, receive, None))
    return seen[0]


def options_of(body, carrier="vllm_xargs"):
    return json.loads(body)[carrier]


@pytest.mark.parametrize("make", [AuthenticatedTenants, PredictedOutput])
@pytest.mark.parametrize("scheme", [b"Bearer key", b"bearer  key "])
def test_tenant_is_that_of_the_api_key(make, scheme):
    body = received(BODY, [(b"Authorization", scheme)], make=make)
    assert options_of(body) == {"specds_group": "g", "specds_tenant": OF_KEY}
    other = received(BODY, [(b"Authorization", b"Bearer other")], make=make)
    assert options_of(other)["specds_tenant"] not in (OF_KEY, "ann", "other")
    assert options_of(received({}, [(b"Authorization", scheme)], make=make)) == {
        "specds_tenant": OF_KEY
    }


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Authorization", b"Basic key")],
        [(b"Authorization", b"Bearer ")],
        [(b"Authorization", b"Bearer a"), (b"Authorization", b"Bearer b")],
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/generate"])
def test_tenant_of_the_body_is_removed(headers, path):
    body = received(BODY, headers, path)
    assert options_of(body) == {"specds_group": "g"}
    escaped = b'{"vllm_xargs": {"specds\\u005ftenant": "ann"}}'
    assert options_of(received(escaped, headers, path)) == {}


def test_tenant_is_that_of_a_configured_header(monkeypatch):
    monkeypatch.setenv(SOURCE, "header:X-User")
    header, key = (b"X-User", b"bob"), (b"Authorization", b"Bearer key")
    assert options_of(received(BODY, [header, key]))["specds_tenant"] == "bob"
    assert options_of(received(BODY, [key])) == {"specds_group": "g"}
    assert options_of(received(BODY, [header, header])) == {"specds_group": "g"}


def test_bodies_are_unchanged_if_clients_are_trusted_or_there_is_nothing_to_read(monkeypatch):
    for body in (b"", b"{", b"[1]", b"\xff", b"[" * 100_000):
        assert received(body) == body
    monkeypatch.setenv(SOURCE, "header:")
    with pytest.raises(ValueError, match="header:NAME or body"):
        AuthenticatedTenants(None)


def test_clients_name_their_tenants_if_they_are_trusted():
    seen = []

    async def app(scope, receive, send):
        seen.append((scope, receive))

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
    asyncio.run(AuthenticatedTenants(app, source="body")(scope, "receive", None))
    assert seen == [(scope, "receive")]


@pytest.mark.parametrize("several", [False, True])
def test_sglang_has_options_in_its_sampling_parameters(several):
    claimed = {"custom_params": dict(CLAIMED)}
    body = {"text": "a", "sampling_params": [claimed, {}] if several else claimed}
    key = [(b"Authorization", b"Bearer key")]
    read = json.loads(received(body, key, "/generate", carrier="custom_params"))["sampling_params"]
    for params in read if several else [read]:
        assert params["custom_params"]["specds_tenant"] == OF_KEY
    chat = received({"custom_params": CLAIMED}, key, carrier="custom_params")
    assert options_of(chat, "custom_params")["specds_tenant"] == OF_KEY
