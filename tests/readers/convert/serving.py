"""A web server on 127.0.0.1 that serves a folder, with ranges, and can break off."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class _Handler(http.server.BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self) -> None:
        path = self.server.folder / self.path.lstrip("/")
        self.server.ranges.append(self.headers.get("Range"))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        start = 0
        wanted = self.headers.get("Range")
        if wanted and self.server.has_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        stop = self.server.break_offs.pop(0) if self.server.break_offs else len(data)
        self.wfile.write(data[start:stop])

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Serves `folder`; `break_offs` are byte positions at which coming answers end early."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.has_ranges = True
        self.break_offs: list[int] = []
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serve(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
