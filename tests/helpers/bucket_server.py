"""A bucket of S3, small enough to run in a thread on loopback, whose faults can be ordered.

It has what a request cache needs: conditional puts and gets, deletions and lists.
"""

import hashlib
import re
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

KEY_ID, KEY = "AKIDOFTHETEST", "secret/of+the+test"


@dataclass
class BucketOfS3:
    """A bucket named `bucket`.

    Attributes:
        fault: Called with the method and the key of each request; returns the status of its answer,
            or None for the right one.
        times: When the requests came, in seconds.
        cuts: Whether the answers have half of each object, except heads.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    fault: Callable[[str, str], int | None] = lambda method, key: None
    cuts: bool = False
    port: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": KEY,
        }


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


@contextmanager
def running_bucket():
    """An empty bucket, as long as the context lasts."""
    bucket, lock = BucketOfS3(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args):
            pass

        def answer(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def handle_request(self):
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = urlsplit(self.path)
            name, _, key = unquote(url.path).lstrip("/").partition("/")
            bucket.times.append(time.monotonic())
            if (status := bucket.fault(self.command, key)) is not None:
                return self.answer(status)
            if f"Credential={KEY_ID}/" not in self.headers.get("Authorization", ""):
                return self.answer(403)
            if name != "bucket":
                return self.answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            with lock:
                return self.served(key, parse_qs(url.query), content)

        do_GET = do_PUT = do_POST = handle_request  # noqa: N815

        def served(self, key, query, content):
            found = bucket.objects.get(key)
            if self.command == "POST":  # the keys that are deleted
                keys = re.findall(r"<Key>(.*?)</Key>", content.decode())
                for key in keys:
                    bucket.objects.pop(unescape(key), None)
                rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                return self.answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode())
            if self.command == "PUT":
                if self.headers.get("If-None-Match") == "*" and found is not None:
                    return self.answer(412)
                expected = self.headers.get("If-Match")
                if expected is not None and found is None:
                    return self.answer(404)
                if expected is not None and expected != _tag(found):
                    return self.answer(412)
                bucket.objects[key] = content
                return self.answer(200, ETag=_tag(content))
            if not key:
                prefix = query.get("prefix", [""])[0]
                rows = "".join(
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                    for key, content in sorted(bucket.objects.items())
                    if key.startswith(prefix)
                    and not ("delimiter" in query and "/" in key[len(prefix) :])
                )
                listed = (
                    f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
                )
                return self.answer(200, listed.encode())
            if found is None:
                return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            about = {"ETag": _tag(found), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
            if self.headers.get("If-None-Match") == _tag(found):
                return self.answer(304, **about)
            is_cut = bucket.cuts and not key.endswith("head")
            return self.answer(200, found[: len(found) // 2] if is_cut else found, **about)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    bucket.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
