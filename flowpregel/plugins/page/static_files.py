"""The files of the page, read and compressed once, when the server starts.

A browser asks for each file by its own address and stores it with its entity tag. At
the next visit the browser sends the tag, and the answer has no content if the file is
still the same. The tag is weak, because the compressed and the plain form of the file
have the same tag.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request


class StaticFile(NamedTuple):
    """A file of the page in memory."""

    content: bytes
    compressed: bytes
    """The content, compressed by gzip."""
    media_type: str
    etag: str
    """The entity tag, which depends on the content only."""

    @classmethod
    def read(cls, path: Path) -> StaticFile:
        """Return the file at *path*."""
        return cls.of(path.name, path.read_bytes())

    @classmethod
    def of(cls, name: str, content: bytes) -> StaticFile:
        """Return a file with this content.

        Args:
            name: The name of the file, which determines the media type.
            content: The content of the file.
        """
        media_type, _ = mimetypes.guess_type(name)
        digest = hashlib.sha256(content).hexdigest()
        return cls(
            content=content,
            # No time stamp is written, so that equal files have equal bytes.
            compressed=gzip.compress(content, mtime=0),
            media_type=media_type or "application/octet-stream",
            etag=f'W/"{digest[:32]}"',
        )

    def response(self, request: Request) -> Response:
        """Return the response to a request for this file."""
        headers = {"etag": self.etag, "vary": "accept-encoding"}
        tags = request.headers.get("if-none-match", "").split(",")
        if self.etag in (tag.strip() for tag in tags):
            return Response(status_code=304, headers=headers)
        content = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content = self.compressed
            headers["content-encoding"] = "gzip"
        return Response(content, headers=headers, media_type=self.media_type)


def static_endpoint(
    folder: Path,
    texts: Mapping[str, str] | None = None,
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that sends the files of a folder by their ``name``.

    Only the files that are in the folder at the time of this call are sent.

    Args:
        folder: The folder with the files. Folders in it are left out.
        texts: Further files by name. A file with the name of one in the folder is sent
            in its place.
    """
    files = {
        path.name: StaticFile.read(path) for path in folder.iterdir() if path.is_file()
    }
    for name, text in (texts or {}).items():
        files[name] = StaticFile.of(name, text.encode())

    async def endpoint(request: Request) -> Response:
        """Return the file, or an error if there is none of this name."""
        name = request.path_params.get("name", "index.html")
        file = files.get(name)
        if file is None:
            return PlainTextResponse("the page has no such file\n", 404)
        return file.response(request)

    return endpoint
