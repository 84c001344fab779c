"""A web server on the loopback interface that stands in for a package index or a model hub."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Server:
    """Serves `files` (path -> content), with extra `headers` by path, and notes the requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.requests: list[str] = []


@contextmanager
def running() -> Iterator[Server]:
    """A Server on a free port, until the block ends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.requests.append(f"{self.command} {self.path}")
            content = server.files.get(self.path)
            self.send_response(404 if content is None else 200)
            content = content or b""
            for name, value in server.headers.get(self.path, {}).items():
                self.send_header(name, value)
            page = self.path.endswith("/")
            self.send_header("Content-Type", "text/html" if page else "application/octet-stream")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{listener.server_port}")
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
