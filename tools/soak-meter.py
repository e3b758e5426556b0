#!/usr/bin/env python3
"""Soak of metering: sends usage to a server of its own for a while, and fails if its memory grows.

    tools/soak-meter.py --minutes 60            # `make soak` runs this
    tools/soak-meter.py --minutes 2 --rate 20000 --logmill target/debug/logmill

A server is started in a temporary folder and gets batches of events over a few connections, some of them twice, of
times spread over the last days, while events are asked for. Every interval a line shows how many events there were, the
resident memory, and the processor time for an event. Memory is flat if, after a warm-up of a quarter of the time, the
median of the last quarter is at most a tenth and 32 MiB above the median of the quarter after the warm-up, and 2.2 bytes
for each event between: the filters by which keys of all events are known are in memory. Writes the samples as JSON with
--json. Needs nothing but Python.
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TYPES = ["api.calls", "storage.bytes", "egress.bytes", "compute.ms"]
BATCH = 1000
DAY_MS = 86_400_000


def settings():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to send")
    parser.add_argument("--connections", type=int, default=4, help="connections that send batches")
    parser.add_argument("--rate", type=int, default=0, help="events a second at most; 0 for as many as are answered")
    parser.add_argument("--customers", type=int, default=1000)
    parser.add_argument("--days", type=int, default=30, help="days before now that usage lies in; 0 for now")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--logmill", default="target/release/logmill", help="the server")
    parser.add_argument("--json", help="write the samples to this file")
    parser.add_argument("--report-only", action="store_true", help="do not fail if memory grows")
    return parser.parse_args()


def memory_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A server in a folder of its own."""

    def __init__(self, program, folder):
        config = os.path.join(folder, "logmill.toml")
        with open(config, "w", encoding="ascii") as file:
            file.write('[server]\nlisten = "127.0.0.1:0"\n[meter]\nperiods = ["hourly", "daily"]\n')
            for name in TYPES:
                file.write(f'[meter.events."{name}"]\nop = "sum"\n')
        self.process = subprocess.Popen(
            [program, "run", "--data", os.path.join(folder, "data"), "--config", config],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )
        self.address = None
        for line in self.process.stderr:
            found = re.search(r'http="([^"]+)"', line)
            if " ready " in line and found:
                self.address = found.group(1)
                break
        if self.address is None:
            sys.exit("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)


class Load:
    """What is sent, and how much was."""

    def __init__(self, options, address):
        self.options = options
        self.address = address
        self.lock = threading.Lock()
        self.next = 0
        self.sent = 0
        self.stopped = threading.Event()
        self.failure = None
        self.threads = []
        self.started = time.monotonic()
        self.base = int(time.time() * 1000)

    def body(self, first, draw):
        span = self.options.days * DAY_MS
        events = []
        for number in range(first, first + BATCH):
            # Of a hundred events five were sent before.
            number = number if draw.random() >= 0.05 else max(0, number - 50_000)
            mixed = number * 2_654_435_761 % (1 << 40)
            stamp = ""
            if span:
                at = self.base - mixed % span
                text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at / 1000))
                stamp = f',"timestamp":"{text}.{at % 1000:03d}Z"'
            events.append(
                f'{{"id":"e{number}","eventType":"{TYPES[number % len(TYPES)]}",'
                f'"customerId":"customer-{mixed % self.options.customers}","value":{number % 1000}{stamp}}}'
            )
        return "[" + ",".join(events) + "]"

    def send(self, seed):
        draw = random.Random(seed)
        connection = http.client.HTTPConnection(self.address, timeout=120)
        while not self.stopped.is_set():
            with self.lock:
                first = self.next
                self.next += BATCH
            body = self.body(first, draw)
            connection.request("POST", "/usagebatch", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 201:
                raise RuntimeError(f"usage was answered with {answer.status}: {text[:300]!r}")
            with self.lock:
                self.sent += BATCH
            if self.options.rate:
                ahead = self.sent / self.options.rate - (time.monotonic() - self.started)
                self.stopped.wait(max(0.0, ahead))

    def ask(self):
        connection = http.client.HTTPConnection(self.address, timeout=120)
        draw = random.Random(1)
        while not self.stopped.wait(0.2):
            customer = draw.randrange(self.options.customers)
            connection.request("GET", f"/events?customerId=customer-{customer}&limit=100")
            connection.getresponse().read()

    def guarded(self, work, *arguments):
        try:
            work(*arguments)
        except Exception as error:  # pylint: disable=broad-except
            self.failure = self.failure or error
            self.stopped.set()

    def start(self):
        works = [(self.send, seed) for seed in range(self.options.connections)] + [(self.ask,)]
        for work, *arguments in works:
            thread = threading.Thread(target=self.guarded, args=(work, *arguments), daemon=True)
            thread.start()
            self.threads.append(thread)

    def stop(self):
        """No new requests; those under way are waited for."""
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def sample(server, load, options):
    """One line every interval, until the time is over."""
    samples = []
    pid = server.process.pid
    before = (0, cpu_s(pid))
    end = load.started + options.minutes * 60
    while time.monotonic() < end and not load.stopped.wait(min(options.interval, max(0.1, end - time.monotonic()))):
        sent, cpu = load.sent, cpu_s(pid)
        seconds = time.monotonic() - load.started
        each = (cpu - before[1]) * 1e6 / max(1, sent - before[0])
        samples.append({"seconds": round(seconds, 1), "events": sent, "rss_mib": round(memory_mib(pid), 1),
                        "cpu_us_per_event": round(each, 2)})
        print(f"{seconds:7.0f} s {sent:12} events {samples[-1]['rss_mib']:8.1f} MiB {each:7.2f} us/event", flush=True)
        before = (sent, cpu)
    return samples


def growth(samples):
    """Medians of the quarter after the warm-up and of the last quarter, and what the last may be."""
    quarter = max(1, len(samples) // 4)
    first, last = samples[quarter:2 * quarter] or samples, samples[-quarter:]
    early, late = (statistics.median(one["rss_mib"] for one in part) for part in (first, last))
    filters = (last[-1]["events"] - first[0]["events"]) * 2.2 / (1 << 20)
    return early, late, early * 1.1 + 32 + filters


def main():
    options = settings()
    with tempfile.TemporaryDirectory(prefix="soak-meter-") as folder:
        server = Server(options.logmill, folder)
        load = Load(options, server.address)
        try:
            load.start()
            samples = sample(server, load, options)
            total_cpu = cpu_s(server.process.pid)
        finally:
            load.stop()
            code = server.stop()
    if load.failure:
        sys.exit(f"error: {load.failure}")
    early, late, most = growth(samples)
    seconds, events = samples[-1]["seconds"], samples[-1]["events"]
    print(f"{events} events in {seconds:.0f} s: {events / seconds:.0f}/s, {total_cpu * 1e6 / events:.2f} us/event; "
          f"memory {early:.0f} MiB after the warm-up, {late:.0f} MiB at the end, "
          f"{max(one['rss_mib'] for one in samples):.0f} MiB at most")
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump({"early_mib": early, "late_mib": late, "samples": samples}, file, indent=1)
    if code != 0:
        sys.exit(f"error: the server ended with {code}")
    if late > most and not options.report_only:
        sys.exit(f"error: memory grows: {most:.0f} MiB would be flat")


if __name__ == "__main__":
    main()
