"""Downloads: resumed where they stopped, checked by SHA-256, put in place whole; their progress."""

from __future__ import annotations

import errno
import hashlib
import http.client
import logging
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock._errors import message

# Called with a name, bytes so far and bytes in all.
Progress = Callable[[str, int, int | None], None]
_LINE_INTERVAL_SECS = 10.0
_PIECE_BYTES = 1 << 18
_LOGGER = logging.getLogger("penstock")
_TIMEOUT_SECS = 60
_MAX_ATTEMPTS = 5


class DownloadError(OSError):
    """A file could not be downloaded whole, or is not the file it should be."""


def no_progress(name: str, num_bytes: int, total_bytes: int | None) -> None:
    """Report nothing."""


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Give a function that shows progress on stderr: bars on a terminal, else some lines.

    Stdout is left to results. Where stderr is no terminal there is a line each ten seconds, and
    none for what takes less.
    """
    if not sys.stderr.isatty():
        yield _Lines()
        return
    # It costs 40 ms, which a run without a terminal saves.
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        "{task.description}",
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
    )
    tasks: dict[str, rich_progress.TaskID] = {}
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bars:

        def report(name: str, num_bytes: int, total_bytes: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total_bytes)
            bars.update(tasks[name], completed=num_bytes, total=total_bytes)

        yield report


class _Lines:
    """Print a line for each ten seconds that something takes."""

    def __init__(self) -> None:
        self._name, self._since_secs = "", 0.0

    def __call__(self, name: str, num_bytes: int, total_bytes: int | None) -> None:
        now_secs = time.monotonic()
        if name != self._name:
            self._name, self._since_secs = name, now_secs
        if now_secs - self._since_secs >= _LINE_INTERVAL_SECS:
            total = "" if total_bytes is None else f" of {total_bytes / 1e6:.1f}"
            print(f"{name}: {num_bytes / 1e6:.1f}{total} MB", file=sys.stderr, flush=True)
            self._since_secs = now_secs


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file to download.

    Args:
      url: `http` or `https`; the last part is the file's name.
      sha256: its checksum, 64 hexadecimal digits; `None` takes any content.

    >>> RemoteFile(url="https://example.org/data/a.tar.gz").filename
    'a.tar.gz'
    """

    url: str
    sha256: str | None = None

    @property
    def filename(self) -> str:
        """Return the file's name."""
        return self.url.rsplit("/", 1)[-1]

    def at_mirror(self, base_url: str | None, *, is_checked: bool = True) -> RemoteFile:
        """Return the same file under another address, a mirror's, with or without its checksum.

        >>> RemoteFile(url="https://example.org/data/a.tgz").at_mirror("http://localhost:8000").url
        'http://localhost:8000/a.tgz'
        """
        url = self.url if base_url is None else f"{base_url.rstrip('/')}/{self.filename}"
        return RemoteFile(url=url, sha256=self.sha256 if is_checked else None)


def fetch(
    source: RemoteFile,
    folder: str | Path,
    *,
    progress: Progress = no_progress,
    retry_secs: float = 1.0,
) -> Path:
    """Return the path of a source's file in `folder`, downloading it if it is not there.

    The download goes to `<name>.part`; when it breaks off it is resumed, up to five times and in
    later runs. The file takes its name only when it is whole and its checksum fits; a download of
    another checksum is removed.

    Raises:
      DownloadError: not reachable, not whole, or of another checksum. A file that was there
        before with another checksum is left as it is.
    """
    path = Path(folder) / source.filename
    if path.exists():
        remedy = f"Remove it to download {source.url}, or take it unchecked (--skip_checksum)"
        _check(path, source, f"'{path}'", remedy)
        return path
    if not source.url.startswith(("http://", "https://")):
        raise DownloadError(
            f"url got {source.url!r}, expected http://... or https://.... Other addresses are not "
            f"downloaded. Put the file at '{path}' yourself."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    _download_whole(source, part, progress, retry_secs)
    try:
        remedy = "The download was removed; run again to repeat it"
        _check(part, source, f"download of {source.url}", remedy)
    except DownloadError:
        part.unlink()
        raise
    part.replace(path)
    return path


def _download_whole(source: RemoteFile, part: Path, progress: Progress, retry_secs: float) -> None:
    """Download to `part`, going on where it broke off, as often as that may help."""
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        try:
            _download(source, part, progress)
            return
        except (OSError, http.client.HTTPException) as error:
            if _is_final(error) or attempt == _MAX_ATTEMPTS:
                remedy = "Run again to resume" if attempt > 1 else "Name a mirror (--base_url)"
                why = f"It was tried {attempt} times" if attempt > 1 else "It would fail again"
                raise DownloadError(
                    f"download of {source.url} got {type(error).__name__}: {_get_reason(error)}, "
                    f"expected the whole file. {why}. {remedy}, or put the file at "
                    f"'{part.with_suffix('')}' yourself."
                ) from error
            wait_secs = retry_secs * 2 ** (attempt - 1)
            _LOGGER.warning(
                "The download of %s stopped: %s. Trying again in %g s.",
                source.filename,
                _get_reason(error),
                wait_secs,
            )
            time.sleep(wait_secs)


def _get_reason(error: Exception) -> object:
    return error.reason if type(error) is urllib.error.URLError else error


def _is_final(error: Exception) -> bool:
    """Return whether another attempt would give the same error."""
    if isinstance(error, urllib.error.HTTPError):
        # A refusal stays a refusal; a failure of the server may pass.
        return error.code < 500
    is_local = isinstance(error, OSError) and error.errno in (
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS),
        *(errno.EACCES, errno.EPERM, errno.EISDIR),
    )
    return is_local or isinstance(error, http.client.InvalidURL)


def _download(source: RemoteFile, part: Path, progress: Progress) -> None:
    """Append to `part` until the file is whole."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "penstock"} | ({"Range": f"bytes={done}-"} if done else {})
    request = urllib.request.Request(source.url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECS)
    except urllib.error.HTTPError as error:
        error.close()
        # Nothing comes after `done`: the part is whole, or of another file.
        if error.code == 416 and done:
            if source.sha256 is None or _sha256(part) != source.sha256:
                part.unlink()
                raise ConnectionError("the server has no such range; starting over") from error
            return
        raise
    with response:
        if response.status != 206:
            # The server does not know ranges and sends the whole file.
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None and length.isdigit() else None
        with open(part, "ab" if done else "wb") as file:
            progress(source.filename, done, total)
            while piece := response.read(_PIECE_BYTES):
                file.write(piece)
                done += len(piece)
                progress(source.filename, done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _check(path: Path, source: RemoteFile, thing: str, remedy: str) -> None:
    if source.sha256 is None:
        return
    digest = _sha256(path)
    if digest != source.sha256:
        why = "It is not the original file, or not all of it"
        raise DownloadError(message(thing, f"SHA-256 {digest}", source.sha256, why, remedy))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
