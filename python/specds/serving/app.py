"""Routes of the server: bodies in, answers and streams out."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specds.pages import page
from specds.serving import ollama
from specds.serving.drafting import Drafting
from specds.serving.engine import BusyError, Engine
from specds.serving.job import TextJob, Update
from specds.serving.metrics import Metrics
from specds.serving.replies import InfillReply, Reply, status_of
from specds.serving.requests import ApiRequest, RequestError, RequestReader

MAX_BODY_BYTES = 4 << 20
"""The most bytes of a body: two texts that fill a long context."""
_LONG_BODY_BYTES = 1 << 16
_NESTED_BYTES = 1 << 18
"""Bytes of a body from which other threads run while it is read, although that takes longer."""
RETRY_S = 2
_SWITCH_S = 0.0001
"""Seconds for which a thread keeps the interpreter while others wait. A step of the engine takes it
a hundred times, for 5 ms each while a large body is read, by Python's default."""


@dataclass(frozen=True)
class ServedModel:
    """A model and all that the routes need.

    Attributes:
        name: The name of the model.
        tenants: Tenants by the SHA-256 (hex) of their keys; empty for a server without keys.
        on_start: Called when requests can come.
    """

    name: str
    model: Any
    tokenizer: Any
    drafting: Drafting
    engine: Engine
    reader: RequestReader
    tenants: dict[str, str] = field(default_factory=dict)
    on_start: Callable[[], object] = lambda: None


def make_app(served: ServedModel) -> Starlette:
    """Return the application."""
    routes, reader = _Routes(served), served.reader
    listed, shown = ollama.about(served, routes.started)
    answers: dict[str, tuple[Callable[[Any, str], ApiRequest], type[Reply]]] = {
        "/v1/chat/completions": (reader.chat, Reply),
        "/v1/completions": (reader.completion, Reply),
        "/infill": (reader.infill, InfillReply),
        "/api/chat": (partial(ollama.read_chat, reader), ollama.ChatReply),
        "/api/generate": (partial(ollama.read_generate, reader), ollama.GenerateReply),
    }
    paths: dict[str, tuple[str, Any]] = {
        "/v1/models": ("GET", routes.models),
        "/v1/models/{name:path}": ("GET", routes.models),
        "/v1/embeddings": ("POST", routes.embeddings),
        "/api/tags": ("GET", _always({"models": [listed]})),
        "/api/ps": ("GET", _always({"models": [listed]})),
        "/api/show": ("POST", _always(shown)),
        "/api/version": ("GET", _always({"version": ollama.VERSION})),
        "/tokenize": ("POST", routes.tokenize),
        "/detokenize": ("POST", routes.detokenize),
        "/health": ("GET", _always({"status": "ok"})),
        "/": ("GET", routes.chat_page),
        "/metrics": ("GET", routes.metrics),
    }
    for path, (read, reply_of) in answers.items():
        paths[path] = "POST", partial(routes.answer, read=read, reply_of=reply_of)
    # Some clients have no `/v1` in their base address.
    paths |= {path.removeprefix("/v1"): route for path, route in paths.items()}

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        served.on_start()
        yield
        await run_in_threadpool(served.engine.close)

    handlers: Any = {
        RequestError: lambda at, e: _refused(at, e.status, str(e), e.param, e.code),
        BusyError: lambda at, e: _refused(at, 503, str(e)),
        404: lambda at, _: _refused(at, 404, f"no route {at.method} {at.url.path}"),
        405: lambda at, _: _refused(at, 405, f"{at.url.path} has no {at.method}"),
    }
    app = Starlette(
        routes=[Route(path, route, methods=[method]) for path, (method, route) in paths.items()],
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    app.add_middleware(_Guard, served=served)
    return app


class _GracefulServer(uvicorn.Server):
    """A server whose engine ends, some time after a signal, the texts that still run."""

    def __init__(self, config: uvicorn.Config, engine: Engine, grace_s: float) -> None:
        super().__init__(config)
        self._engine, self._grace_s = engine, grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.get_running_loop().call_later(self._grace_s, self._engine.stop)
        await super().shutdown(sockets)
        ending.cancel()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 is a free one.

    Raises:
        OSError: The address is taken, or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise OSError(f"cannot listen at {host}, port {port}: {error.strerror}") from error
    # Accepted sockets inherit it. Otherwise, the body of an answer follows its head after 40 ms,
    # when the client acknowledges that.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def run(served: ServedModel, sock: socket.socket, grace_s: float = 5) -> None:
    """Serve at a listening socket until SIGINT or SIGTERM; requests then get `grace_s` seconds."""
    config = uvicorn.Config(
        make_app(served), log_level="error", access_log=False, ws="none", lifespan="on"
    )
    sys.setswitchinterval(_SWITCH_S)
    gc.freeze()  # a full collection of the tokenizer and the modules holds all threads for 30 ms
    # uvicorn raises the signals again at its end, when there is something left to save.
    before = {number: signal.signal(number, lambda *_: None)
              for number in (signal.SIGINT, signal.SIGTERM)}  # fmt: skip
    try:
        _GracefulServer(config, served.engine, grace_s).run(sockets=[sock])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refused(
    at: HTTPConnection, status: int, message: str, param: str | None = None, code: str | None = None
) -> Response:
    """Return an error in the form of the API that was asked."""
    reply = ollama.ChatReply if at.url.path.startswith("/api/") else Reply
    headers = {"Retry-After": str(RETRY_S)} if status == 503 else None
    return JSONResponse(reply.error(status, message, param, code), status, headers)


class _Guard:
    """Rejects requests without a key, if there are keys, and those of pages of other sites."""

    def __init__(self, app: ASGIApp, served: ServedModel) -> None:
        self._app, self._tenants = app, served.tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        at = HTTPConnection(scope)
        origin, host = at.headers.get("origin"), at.headers.get("host", "")
        refused: Response | None = None
        scope["tenant"] = ""
        if self._tenants and scope["path"] not in ("/", "/health"):
            _, _, key = at.headers.get("authorization", "").partition(" ")
            key = key.strip() or at.headers.get("x-api-key", "")
            tenant = self._tenants.get(sha256(key.encode("latin-1", "replace")).hexdigest())
            scope["tenant"] = tenant or ""
            if tenant is None:
                message = "this server needs a valid API key"
                refused = _refused(at, 401, message, code="invalid_api_key")
        elif origin is not None and origin.partition("://")[2] != host:
            refused = _refused(at, 403, "pages of other sites need a server with API keys")
        elif not self._tenants and not _is_own(host, scope.get("server")):
            refused = _refused(at, 403, f"a server without API keys has no host {host[:80]!r}")
        await (refused or self._app)(scope, receive, send)


def _is_own(host: str, server: Any) -> bool:
    """Return false for a name that another site may have given to this machine's own address."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    is_address = name.replace(".", "").isdigit() or name.startswith("[")
    local = server is not None and str(server[0]) in ("127.0.0.1", "::1")
    return not host or not local or is_address or name in ("localhost", "testserver")


def _always(body: Any) -> Callable[[Request], Awaitable[Response]]:
    """Return a route whose answer does not depend on the request."""

    async def route(_: Request) -> Response:
        return JSONResponse(body)

    return route


class _Routes:
    def __init__(self, served: ServedModel) -> None:
        self._served, self._reader, self._engine = served, served.reader, served.engine
        self._metrics, self._page = Metrics(served.engine), page("specds.serving", "specds serve")
        self.started = int(time.time())

    async def models(self, request: Request) -> Response:
        model = self._served.model
        about = {
            "id": self._served.name,
            "object": "model",
            "created": self.started,
            "owned_by": "specds",
            "context_length": model.context_length,
            "max_model_len": model.context_length,
        }
        name = request.path_params.get("name")
        if name not in (None, self._served.name):
            message = f"no model {name!r}"
            return _refused(request, 404, message, "model", "model_not_found")
        return JSONResponse({"object": "list", "data": [about]} if name is None else about)

    async def chat_page(self, _: Request) -> Response:
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:"
        )
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
        return Response(self._page, media_type="text/html", headers=headers)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def embeddings(self, request: Request) -> Response:
        return _refused(request, 501, "specds serves no embeddings: it generates text")

    async def tokenize(self, request: Request) -> Response:
        body = await _body(request)
        tokens = await run_in_threadpool(self._reader.tokens, body)
        return JSONResponse({"tokens": tokens, "count": len(tokens)})

    async def detokenize(self, request: Request) -> Response:
        text = await run_in_threadpool(self._reader.text, await _body(request))
        return JSONResponse({"content": text, "prompt": text})

    async def answer(
        self, request: Request, read: Callable[[Any, str], ApiRequest], reply_of: type[Reply]
    ) -> Response:
        call, inbox = await self._begun(request, await _body(request), read)
        reply = reply_of(call, inbox.jobs, self._served.name, self._served.tokenizer)
        if call.is_streamed:
            return _EventStream(inbox, reply)

        async def whole() -> Response:
            updates = [Update() for _ in inbox.jobs]
            async for index, more in inbox:
                updates[index] = more
            for update in updates:
                if update.failure is not None:
                    return _refused(request, *status_of(update.failure))
            return JSONResponse(reply.whole(updates))

        return await inbox.watched(request, whole())

    async def _begun(
        self, request: Request, body: Any, read: Callable[[Any, str], ApiRequest]
    ) -> tuple[ApiRequest, _Inbox]:
        """Read a request and queue its jobs."""
        call = await run_in_threadpool(read, body, request.scope["tenant"])
        asked, served = call.jobs, self._served
        self._engine.reserve(len(asked))
        inbox = _Inbox(self._engine)
        about = {"is_streamed": call.is_streamed, "has_sources": call.has_sources}
        make = self._engine.make

        def opened() -> None:
            try:
                for index, each in enumerate(asked):
                    deliver = inbox.of(index)
                    given = each, served.tokenizer, served.drafting.drafter
                    inbox.jobs.append(make(*given, deliver=deliver, **about))
            except BaseException:
                for job in inbox.jobs:
                    job.close()
                self._engine.release(len(asked))
                raise
            self._engine.submit(inbox.jobs)

        try:
            await run_in_threadpool(opened)
        except ValueError as error:
            raise RequestError(str(error)) from error
        return call, inbox


class _Inbox:
    """Updates of the jobs of a request, for the event loop."""

    def __init__(self, engine: Engine) -> None:
        self.jobs: list[TextJob] = []
        self._engine, self._loop = engine, asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()
        self._num_ended = 0

    def of(self, index: int) -> Callable[[Update], object]:
        """Return a function that takes updates of a job, from any thread."""

        def deliver(update: Update) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, update))

        return deliver

    def __aiter__(self) -> _Inbox:
        return self

    async def __anext__(self) -> tuple[int, Update]:
        if self._num_ended == len(self.jobs):
            raise StopAsyncIteration
        index, update = await self._queue.get()
        self._num_ended += update.finish is not None or update.failure is not None
        return index, update

    def waiting(self) -> list[tuple[int, Update]]:
        """Return the updates that wait."""
        found = []
        while not self._queue.empty():
            index, update = self._queue.get_nowait()
            self._num_ended += update.finish is not None or update.failure is not None
            found.append((index, update))
        return found

    async def watched(self, request: Request, answer: Any) -> Response:
        """Return the answer, or cancel the jobs if the client leaves before."""
        async with self.canceled_without(request.receive):
            response: Response = await answer
            return response

    @asynccontextmanager
    async def canceled_without(self, receive: Receive) -> AsyncIterator[None]:
        """Cancel the jobs when the client leaves, or the context is left early."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._engine.cancel(self.jobs)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
            self._engine.cancel(self.jobs)


class _EventStream(Response):
    """An answer in parts."""

    def __init__(self, inbox: _Inbox, reply: Reply) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(None, 200, headers, reply.media_type)
        del self.headers["content-length"]
        self._inbox, self._reply = inbox, reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        parts = self._reply.parts
        async with self._inbox.canceled_without(receive):
            with suppress(OSError):  # the client has left
                await send(start)
                async for first in self._inbox:
                    updates = (first, *self._inbox.waiting())
                    if body := b"".join(parts(*update) for update in updates):
                        await send({"type": "http.response.body", "body": body, "more_body": True})
                await send({"type": "http.response.body", "body": self._reply.last()})


class _PatientDecoder(json.JSONDecoder):
    """Reads JSON in Python, whose threads take turns; in C, small objects hold them all."""

    def __init__(self) -> None:
        super().__init__()
        parts: Any = json.decoder
        self.parse_object, self.parse_array = parts.JSONObject, parts.JSONArray
        self.parse_string = parts.py_scanstring
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


async def _body(request: Request) -> Any:
    """Return the JSON of a request's body."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise RequestError(f"the body has more than {MAX_BODY_BYTES:,} bytes", status=413)
            parts.append(part)
        whole = b"".join(parts)
        if len(whole) < _LONG_BODY_BYTES:
            return json.loads(whole)
        read = json.loads if len(whole) < _NESTED_BYTES else _PatientDecoder().decode
        return await run_in_threadpool(lambda: read(whole.decode()))
    except ClientDisconnect:
        raise RequestError("the client has left") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError("the body is not JSON") from None


def read_keys(path: Path) -> dict[str, str]:
    """Read a file of keys: a key in each line and, after a space, its tenant.

    The tenant of a key without one is made of its hash.

    Raises:
        ValueError: It has no key.
    """
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, tenant = line.partition("#")[0].strip().partition(" ")
        if key:
            found |= tenants_of(key, tenant.strip())
    if not found:
        raise ValueError(f"{path} has no key: write one in each line")
    return found


def tenants_of(key: str, tenant: str = "") -> dict[str, str]:
    """Return the tenant of a key by the hash of the key."""
    name = sha256(key.encode()).hexdigest()
    return {name: tenant or f"key {name[:32]}"}
