"""A Hugging Face hub for datasets, small enough to run in a thread on loopback.

It answers what the unmodified clients ask for when they open, stream, download or upload a dataset:
what a dataset is, what is in its folders, ranges of its files, and commits. Its faults can be
ordered.
"""

import base64
import hashlib
import json
import re
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from typing import Any
from urllib.parse import unquote, urlsplit

import hub_client

MAX_ENDLESS = 256 << 20
TOKEN = "hf_token_of_a_friend"


@dataclass
class Repository:
    """A dataset: its files, and for some of their paths a lie about their sizes."""

    files: dict[str, bytes]
    gated: bool = False  # shown only to who brings `TOKEN`
    drops: dict[str, list[int]] = field(default_factory=dict)  # where the next connections break
    sizes: dict[str, int] = field(default_factory=dict)
    ignores_uploads: bool = False
    endless: set[str] = field(default_factory=set)  # paths whose bodies have no end
    redirects: dict[str, str] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        """The id of these files; other files have another, as clients cache a commit's files."""
        return _digest(repr(sorted(self.files.items())).encode())


@dataclass
class Hub:
    """A hub: its datasets by their ids, and its faults."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # uploaded, not committed; by SHA-256
    requests: list[str] = field(default_factory=list)  # `METHOD /path`, or `DROPPED`
    num_endless_bytes: int = 0  # sent of bodies without an end
    refuses: int | None = None  # the status of the answer to everything
    endpoint: str = ""


@contextmanager
def running_hub():
    """A hub without datasets, as long as the context lasts."""
    hub = Hub()
    handler = type("Handler", (_HubHandler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def hub_with_client(home):
    """A hub, and a process whose clients know no other one, with their cache in a folder."""
    with running_hub() as hub:
        told = get_context("spawn"), hub_client.prepare, (hub.endpoint, str(home))
        with ProcessPoolExecutor(1, *told) as pool:
            yield hub, pool


@lru_cache(maxsize=64)  # a hub knows the checksums of its files
def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


class _HubHandler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer: a second one would wait for the first to be seen

    def log_message(self, *arguments: Any) -> None:
        """Print nothing on standard error."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        asked = re.fullmatch(
            r"(/api)?/datasets/(?P<id>[^/]+/[^/]+)(/auth-check)?"
            r"(/(?P<what>revision|tree|resolve)/(?P<revision>[^/]+)(/(?P<path>.*))?)?",
            path,
        )
        repository = asked and self.hub.repositories.get(asked["id"])
        if self.hub.refuses:
            self._refuse(self.hub.refuses, "Broken")
        elif not asked or not repository:
            self._refuse(404, "RepoNotFound")
        elif path.endswith("/auth-check"):
            if not self._is_refused(repository):
                self._json({})
        elif asked["revision"] not in (None, "main", repository.commit):
            self._refuse(404, "RevisionNotFound")
        elif asked["what"] == "resolve":
            self._file(repository, asked["path"])
        elif asked["what"] == "tree":
            self._tree(repository, (asked["path"] or "").rstrip("/"))
        else:
            sizes = {path: len(content) for path, content in repository.files.items()}
            sizes |= repository.sizes
            siblings = [{"rfilename": path, "size": size} for path, size in sizes.items()]
            about = {"_id": "1", "id": asked["id"], "sha": repository.commit}
            self._json(about | {"siblings": siblings})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = re.fullmatch(
            r"(/api)?/datasets/(?P<id>[^/]+/[^/]+?)(\.git)?/(?P<what>preupload|commit|info)/.*",
            path,
        )
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(403, "Forbidden")
        elif path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given['organization']}/{given['name']}"
            self.hub.repositories.setdefault(name, Repository({}))
            self._json({"url": f"{self.hub.endpoint}/datasets/{name}"})
        elif not asked:  # what a card says
            self._json({})
        elif asked["what"] == "preupload":
            files = json.loads(body)["files"]
            for file in files:
                mode = "lfs" if file["path"].endswith(".bin") else "regular"
                file |= {"uploadMode": mode, "shouldIgnore": False}
            self._json({"files": files})
        elif asked["what"] == "info":
            objects = json.loads(body)["objects"]
            for each in objects:
                if each["oid"] not in self.hub.objects:
                    address = f"{self.hub.endpoint}/{each['oid']}"
                    each["actions"] = {"upload": {"href": address}}
            self._json({"transfer": "basic", "objects": objects})
        else:
            self._commit(asked["id"], body)

    def do_PUT(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.objects[hashlib.sha256(body).hexdigest()] = body
        self._json({})

    def _commit(self, name: str, body: bytes) -> None:
        repository = self.hub.repositories[name]
        header, *operations = map(json.loads, body.splitlines())
        if header["value"].get("parentCommit") not in (None, repository.commit):
            self._refuse(412, "Precondition")
            return
        for operation in operations if not repository.ignores_uploads else ():
            value = operation["value"]
            if operation["key"] == "deletedFile":
                del repository.files[value["path"]]
            elif operation["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            else:
                repository.files[value["path"]] = self.hub.objects[value["oid"]]
        commit = repository.commit
        address = f"{self.hub.endpoint}/datasets/{name}/commit/{commit}"
        self._json({"commitUrl": address, "commitOid": commit})

    def _tree(self, repository: Repository, folder: str) -> None:
        prefix = f"{folder}/" if folder else ""
        is_deep = "recursive=true" in self.path.lower()
        entries: dict[str, dict[str, Any]] = {}
        for path, content in sorted(repository.files.items()):
            name, is_below, _ = path.removeprefix(prefix).partition("/")
            if path.startswith(prefix) and is_below:
                below = {"type": "directory", "oid": "d" * 40, "size": 0, "path": prefix + name}
                entries[prefix + name] = below
            if path.startswith(prefix) and (is_deep or not is_below):
                file = {"type": "file", "oid": _digest(content), "size": len(content)}
                entries[path] = file | {"path": path}
        if entries:
            self._json(list(entries.values()))
        else:
            self._refuse(404, "EntryNotFound")

    def _is_refused(self, repository: Repository) -> bool:
        given = self.headers.get("Authorization")
        refused = repository.gated and given != f"Bearer {TOKEN}"
        if refused:
            self._refuse(403 if given else 401, "GatedRepo")
        return refused

    def _file(self, repository: Repository, path: str) -> None:
        if self._is_refused(repository):
            return
        if path not in repository.files:
            self._refuse(404, "EntryNotFound")
            return
        if path in repository.redirects:
            self.send_response(302)
            self.send_header("Location", repository.redirects[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, drops = repository.files[path], repository.drops.get(path, [])
        headers = {"X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        headers["ETag"] = f'"{_digest(content)}"'
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if path in repository.endless and self.command == "GET":
            self._send_endless(headers)
            return
        if not asked:
            self._send(200, headers, content, drops)
            return
        start, end = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self._send(206, headers, content[start : end + 1], drops)

    def _json(self, value: Any) -> None:
        headers = {"Content-Type": "application/json"}
        self._send(200, headers, json.dumps(value).encode(), [])

    def _refuse(self, status: int, code: str) -> None:
        headers = {"Content-Type": "application/json", "X-Error-Code": code}
        if code == "Broken":  # without these words, a 401 says that there is no such dataset
            headers["X-Error-Message"] = "Invalid credentials in Authorization header"
        self._send(status, headers, json.dumps({"error": code}).encode(), [])

    def _send_endless(self, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in (headers | {"Transfer-Encoding": "chunked"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        block = b"%x\r\n%s\r\n" % (1 << 16, b"a" * (1 << 16))
        with suppress(OSError):  # the client closes the connection
            while self.hub.num_endless_bytes < MAX_ENDLESS:
                self.wfile.write(block)
                self.hub.num_endless_bytes += 1 << 16
            self.wfile.write(b"0\r\n\r\n")

    def _send(self, status: int, headers: dict[str, str], body: bytes, drops: list[int]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if drops and drops[0] < len(body):
            body = body[: drops.pop(0)]
            self.close_connection = True
            self.hub.requests.append("DROPPED")
        self.wfile.write(body)
