"""Time between tokens at the clients of a server: `python bench/serve_latency.py http://HOST:PORT`.

Start the server apart, with `mtlqwen serve`; the clients read raw sockets, so that what is measured
is the server. Prints the median, p99 and their ratio over all clients, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from itertools import pairwise
from time import perf_counter
from urllib.parse import urlsplit


async def client(host: str, port: int, number: int, num_tokens: int) -> list[float]:
    """Arrival time of each event of one stream, in seconds."""
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": f"Count from {number} to 1000."}],
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
    )
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
    )
    arrivals = []
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            arrivals.append(perf_counter())
    writer.close()
    return arrivals


async def measure(url: str, num_clients: int, num_tokens: int) -> list[float]:
    """Gaps between events while all clients stream, in seconds."""
    address = urlsplit(url)
    streams = await asyncio.gather(
        *(
            client(address.hostname, address.port, number, num_tokens)
            for number in range(num_clients)
        )
    )
    start_s, end_s = max(s[0] for s in streams), min(s[-1] for s in streams)
    return [
        after - before
        for arrivals in streams
        for before, after in pairwise(arrivals)
        if start_s <= before and after <= end_s
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    arguments = parser.parse_args()
    gaps = sorted(asyncio.run(measure(arguments.url, arguments.clients, arguments.tokens)))
    median, p99 = statistics.median(gaps), gaps[int(0.99 * len(gaps))]
    print(
        f"{arguments.clients} clients, {len(gaps)} gaps: median {median * 1e3:.2f} ms, "
        f"p99 {p99 * 1e3:.2f} ms, max {gaps[-1] * 1e3:.2f} ms, p99/median {p99 / median:.2f}"
    )


main()
