"""What tests of launched groups share."""


def read_until(stream, *words: bytes) -> bytes:
    """Read until all words have come; fail at the end of the stream."""
    read = b""
    while not all(word in read for word in words):
        line = stream.readline()
        assert line, read
        read += line
    return read
