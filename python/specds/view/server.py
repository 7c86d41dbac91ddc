"""HTTP server of the page and its answers, for this machine only."""

import json
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from specds.pages import page
from specds.view.explorer import MOST_NODES, Explorer

_MOST_BYTES = 1 << 20


def serve(explorer: Explorer, port: int = 0) -> ThreadingHTTPServer:
    """Return a server on the loopback address; `serve_forever` runs it."""
    return _Server(
        ("127.0.0.1", port),
        partial(_Handler, explorer, page("specds.view", "specds view").encode()),
    )


class _Server(ThreadingHTTPServer):
    def handle_error(self, *request: Any) -> None:
        """Ignore a browser that disconnects before its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else the kernel holds the body back until the browser has acknowledged the headers: 40 ms.
    disable_nagle_algorithm = True

    def __init__(self, explorer: Explorer, page: bytes, *args: Any) -> None:
        self._explorer = explorer
        self._page = page
        super().__init__(*args)

    def do_GET(self) -> None:
        if self.path == "/":
            self._send(200, self._page, "text/html; charset=utf-8")
        elif self.path == "/about":
            self._tell(self._explorer.about())
        else:
            self._tell({"error": "nothing is here"}, 404)

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", 0))
            if self.path not in ("/explore", "/replay") or not 0 < length <= _MOST_BYTES:
                raise ValueError(self.path)
            asked = json.loads(self.rfile.read(length))
            num_nodes = max(1, min(int(asked["nodes"]), MOST_NODES))
            if self.path == "/replay":
                answer = self._explorer.replay(int(asked["number"]), num_nodes)
            else:
                answer = self._explorer.explore(str(asked["text"]), num_nodes)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            self.close_connection = True
            self._tell({"error": "no question"}, 400)
        else:
            self._tell(answer)

    def parse_request(self) -> bool:
        """Reject requests under another host name or from scripts of other sites."""
        if not super().parse_request():
            return False
        _, port = self.connection.getsockname()
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        is_ours = host in (f"127.0.0.1:{port}", f"localhost:{port}")
        if is_ours and origin in (None, f"http://{host}"):
            return True
        self.close_connection = True
        self._tell({"error": "this page is of 127.0.0.1 alone"}, 403)
        return False

    def _tell(self, value: Any, code: int = 200) -> None:
        self._send(code, json.dumps(value).encode(), "application/json")

    def _send(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:",
        )
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing, since requests hold what the user types."""
