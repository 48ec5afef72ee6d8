"""Load a server that has OpenAI's completions API: a number of users send one request after the other, and each answer is streamed.

    python examples/load_test.py http://localhost:8000 --model NAME --users 8

prints one line of JSON: lists of the seconds to the first token and per further token, and the tokens and good requests per second.
docs/programs.md starts a server with it, and varies the number of users.
"""

import argparse
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit


def request(options: argparse.Namespace) -> list[float]:
    """Send one request; return when it was sent and when each token arrived."""
    address = urlsplit(options.url)
    connection = http.client.HTTPConnection(address.hostname or "localhost", address.port, timeout=options.timeout)
    body = {
        "model": options.model,
        "prompt": options.prompt,
        "max_tokens": options.tokens,
        "stream": True,
        "temperature": 0,
    }
    times = [time.perf_counter()]
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"the server answered {response.status}: {response.read(500).decode(errors='replace')}")
    for line in response:  # server-sent events: "data: {…}", at the end "data: [DONE]"
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        if any(one.get("text") for one in json.loads(data)["choices"]):
            times.append(time.perf_counter())
    connection.close()
    if len(times) < 2:
        raise SystemExit("the server sent no token")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server that has OpenAI's completions API.")
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--users", type=int, default=1, help="requests at the same time")
    parser.add_argument("--requests", type=int, default=32, help="requests of all users together")
    parser.add_argument("--prompt", default="Once upon a time", help="the same for all requests")
    parser.add_argument("--tokens", type=int, default=16, help="new tokens of each request")
    parser.add_argument("--limit", type=float, default=1.0, help="seconds to the first token of a good request")
    parser.add_argument("--timeout", type=float, default=60.0)
    options = parser.parse_args()
    begin = time.perf_counter()
    with ThreadPoolExecutor(options.users) as users:
        found = list(users.map(request, [options] * options.requests))
    seconds = time.perf_counter() - begin
    first = [times[1] - times[0] for times in found]
    between = [(times[-1] - times[1]) / (len(times) - 2) for times in found if len(times) > 2]
    result = {
        "first_token": first,
        "per_token": between,
        "tokens_per_s": sum(len(times) - 1 for times in found) / seconds,
        "good_requests_per_s": sum(one <= options.limit for one in first) / seconds,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
