"""Incremental parser of a form with one file (multipart/form-data, RFC 7578).

It does not hold the file in memory.
"""

from __future__ import annotations

from collections.abc import Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from swerex_c.exceptions import InvalidInputError
from swerex_c.files.writing import write_all

__all__ = ["Form"]

_MOST_FIELDS = 64
_MOST_TEXT = 64 << 10
"""Maximum total size in bytes of the fields other than the file, and of the headers of all parts."""


class Form:
    """An incremental parser of one form.

    It writes the part named `file` to a file as the data arrives.
    """

    def __init__(self, content_type: str, open_file: Callable[[dict[str, str]], int]):
        """Create a parser.

        Args:
            open_file: called with the fields before the file; returns the descriptor to write to.

        Raises:
            InvalidInputError: if `content_type` is not multipart/form-data with a valid boundary.
        """
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InvalidInputError("A file is uploaded as multipart/form-data with a boundary")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.file: int | None = None
        """Descriptor that the file was written to; None without a file."""
        self.complete = False
        self._open_file = open_file
        self._text = 0
        self._name = ""
        self._value = bytearray()
        self._head_name = bytearray()
        self._head_value = bytearray()
        self._heads: dict[bytes, bytes] = {}
        self._in_file = False
        callbacks = {name: getattr(self, "_" + name) for name in _CALLBACKS}
        try:
            self._parser = MultipartParser(options[b"boundary"], callbacks)  # type: ignore[arg-type]
        except (FormParserError, ValueError) as error:
            raise InvalidInputError(f"The form cannot be read: {error}") from None

    def feed(self, data: bytes) -> None:
        """Parse the next piece of the form, of any size.

        Raises:
            InvalidInputError: if the data is not a form, or it has too much data besides one file.
            OSError: if the file cannot be written.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidInputError(f"The form cannot be read: {error}") from None

    def _count(self, size: int) -> None:
        self._text += size
        if self._text > _MOST_TEXT or len(self.fields) > _MOST_FIELDS:
            raise InvalidInputError("The form has too much data besides the file")

    def _on_part_begin(self) -> None:
        self._heads = {}
        self._value = bytearray()
        self._in_file = False

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._head_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._head_value += data[start:end]

    def _on_header_end(self) -> None:
        self._heads[bytes(self._head_name).lower()] = bytes(self._head_value)
        self._head_name, self._head_value = bytearray(), bytearray()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._heads.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode("utf-8", "surrogateescape")
        if self._name != "file":
            return
        if self.file is not None:
            raise InvalidInputError("The form has more than one file")
        filename = options.get(b"filename")
        self.filename = filename.decode("utf-8", "surrogateescape") if filename is not None else None
        self.file = self._open_file(self.fields)
        self._in_file = True

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            assert self.file is not None
            write_all(self.file, [memoryview(data)[start:end]])
        else:
            self._count(end - start)
            self._value += data[start:end]

    def _on_part_end(self) -> None:
        if not self._in_file:
            self._count(len(self._name))
            self.fields[self._name] = bytes(self._value).decode("utf-8", "surrogateescape")

    def _on_end(self) -> None:
        self.complete = True


_CALLBACKS = (
    "on_part_begin",
    "on_header_field",
    "on_header_value",
    "on_header_end",
    "on_headers_finished",
    "on_part_data",
    "on_part_end",
    "on_end",
)
