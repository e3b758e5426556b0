#!/usr/bin/env python3
"""Acceptance suite of metering: posts known usage for every operation, triggers, and compares the aggregates.

    BASE_URL=https://meter.example API_KEY=... tools/acceptance.py

The key needs the scopes to send usage, to read and to trigger. The server must have the event types of EVENTS below;
`GET /config` is compared with them first. Nothing is dropped: every run has customers of its own, so it may run against a
server that is in use. Exits with 1 and names what differs, or with 0.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from decimal import Decimal

WAIT_S = 60
EVENTS = {
    "api.calls": "sum",
    "storage.bytes": "max",
    "response.time.ms": "avg",
    "test.min": "min",
    "test.count": "count",
    "test.first": "first",
    "test.last": "last",
}
TENS = [str(10 * n) for n in range(1, 11)]
# Customer, event type, values, expected.
CASES = [
    ("sum", "api.calls", TENS, "550"),
    ("max", "storage.bytes", ["1000", "5000", "2000", "6000", "3000"], "6000"),
    ("avg", "response.time.ms", [str(100 * n) for n in range(1, 11)], "550"),
    ("min", "test.min", ["50", "5", "25", "15"], "5"),
    ("count", "test.count", TENS, "10"),
    ("first", "test.first", ["111", "222", "999"], "111"),
    ("last", "test.last", ["111", "222", "999"], "999"),
    ("signs", "api.calls", ["-10", "20", "-5", "15", "-8", "12", "-3", "9", "-7", "17"], "40"),
    ("decimals", "response.time.ms", [f"{10 * n}.5" for n in range(1, 11)], "55.5"),
    ("single", "api.calls", ["42"], "42"),
    ("zeros", "storage.bytes", ["0", "100", "0", "50"], "100"),
    ("negative-min", "test.min", ["10", "-5", "0"], "-5"),
]


class Server:
    """The server under test."""

    def __init__(self, base, key):
        self.base, self.key = base.rstrip("/"), key

    def ask(self, method, path, body=None):
        request = urllib.request.Request(self.base + path, method=method)
        request.add_header("x-apikey", self.key)
        data = None
        if body is not None:
            request.add_header("content-type", "application/json")
            data = body.encode()
        try:
            with urllib.request.urlopen(request, data, timeout=30) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text or b"null", parse_float=Decimal, parse_int=Decimal)


def post_all(server, run):
    """Posts the values one after another, each a moment later: `first` and `last` go by time."""
    now = int(time.time() * 1000)
    for customer, event_type, values, _ in CASES:
        for position, value in enumerate(values):
            # As text, so that no digit passes through a float.
            body = '{"customerId": "%s-%s", "value": %s, "timestamp": %d}' % (
                run, customer, value, now - 1000 + position)
            status, answer = server.ask("POST", f"/usage/{event_type}", body)
            if status != 201:
                sys.exit(f"POST /usage/{event_type}: {status} {answer}")


def difference(server, run):
    """What differs from the expected aggregates, or None."""
    for customer, event_type, values, expected in CASES:
        path = f"/aggregations?customerId={run}-{customer}&limit=1000"
        status, found = server.ask("GET", path)
        if status != 200 or not found:
            return f"{customer}: {status} {found}"
        # The longest period: a run at the turn of an hour has two aggregates of hours. `YYYY` is shorter than `YYYYMM`.
        longest = min(found, key=lambda one: len(one["periodKey"]))
        value, count = longest["events"].get(event_type), longest["eventCounts"].get(event_type)
        if value != Decimal(expected) or count != len(values):
            return f"{customer}: {event_type} is {value} of {count} events, expected {expected}"
    return None


def main():
    base = os.environ.get("BASE_URL") or sys.exit("BASE_URL is not set: give the address of the server")
    server = Server(base, os.environ.get("API_KEY", ""))
    status, config = server.ask("GET", "/config")
    if status != 200:
        sys.exit(f"GET /config: {status} {config}; check BASE_URL and API_KEY")
    for event_type, op in EVENTS.items():
        if config["events"].get(event_type, {}).get("op") != op:
            sys.exit(f"the server does not have the event type {event_type} with the operation {op}")
    run = f"acceptance-{uuid.uuid4().hex[:12]}"
    post_all(server, run)
    status, answer = server.ask("POST", "/aggregations/trigger")
    if status != 202:
        sys.exit(f"POST /aggregations/trigger: {status} {answer}")
    end = time.monotonic() + WAIT_S
    wrong = difference(server, run)
    while wrong and time.monotonic() < end:
        time.sleep(0.2)
        wrong = difference(server, run)
    if wrong:
        sys.exit(f"failed: {wrong}")
    print(f"{len(CASES)} cases passed")


if __name__ == "__main__":
    main()
