"""Clients of a server in a process of their own: connections that ask again and again.

python -m benchmarks._serving_clients PORT PATH CLIENTS SECONDS RATE JSON_BYTES < REQUEST_BODY

RATE is how many requests a second all of them send; with 0 each sends its next when it has its
answer. Prints the number of answers in a second and the median and 99th percentile of their
seconds, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time


async def _ask(port: int, request: bytes, begin: float, end: float, gap: float) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seconds: list[float] = []
    due = begin
    while (now := time.perf_counter()) < end:
        if gap:
            # From when it should have been sent: one that is late is not quick.
            due += gap
            await asyncio.sleep(max(due - now, 0))
        start = due if gap else now
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(head.decode())
        length = int(head.partition(b"content-length: ")[2].split(b"\r")[0])
        await reader.readexactly(length)
        if now >= begin:
            seconds.append(time.perf_counter() - start)
    writer.close()
    return seconds


async def _ask_all(port: int, request: bytes, clients: int, secs: float, rate: float) -> None:
    begin = time.perf_counter() + secs / 4  # to warm up
    gap = clients / rate if rate else 0.0
    tasks = [
        _ask(port, request, begin + gap * n / clients, begin + secs, gap) for n in range(clients)
    ]
    seconds = sorted(each for some in await asyncio.gather(*tasks) for each in some)
    median, worst = seconds[len(seconds) // 2], seconds[int(0.99 * len(seconds))]
    print(json.dumps([len(seconds) / secs, median, worst]))


if __name__ == "__main__":
    port, path, clients, secs, rate, length = sys.argv[1:]
    body = sys.stdin.buffer.read()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        f"inference-header-content-length: {length}\r\n\r\n"
    )
    asyncio.run(_ask_all(int(port), head.encode() + body, int(clients), float(secs), float(rate)))
