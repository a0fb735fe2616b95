"""Prometheus and node_exporter as they are, and a stand-in for dcgm-exporter, which needs a GPU; all on loopback."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.free_ports import HERE, free_ports

DCGM = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz).", 1980),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C).", 54),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W).", 409.692),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", "Total number of PCIe retries.", 3),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "GPU utilization (in %).", 97),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "Value of the last XID error encountered.", 79),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Framebuffer memory free (in MiB).", 35690),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Framebuffer memory used (in MiB).", 45459),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("counter", "Number of remapped rows for uncorrectable errors", 2),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", "Whether remapping of rows has failed", 0),
}
"""Kind, help and a value of what dcgm-exporter offers by default, as releases of 2025 write it."""


BUSY = {0: 97, 1: 97, 2: 40}
"""How busy each GPU is, in per cent."""
JOB = "4711"
"""Of all GPUs but the first, which has none."""


def dcgm_text(host: str) -> str:
    """The exporter's answer on such a host, with a mapping of jobs; made by hand."""
    lines = []
    for name, (kind, words, value) in DCGM.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        for gpu, busy in BUSY.items():
            job = f',hpc_job="{JOB}"' if gpu else ""
            lines.append(
                f'{name}{{gpu="{gpu}",UUID="GPU-5b4e07f6-3a86-4340-039d-25f2a83cdc4{gpu}",pci_bus_id="00000000:{gpu + 7:02}:00.0",'
                f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="{host}",DCGM_FI_DRIVER_VERSION="580.95.05"{job}}} '
                f"{busy if name == 'DCGM_FI_DEV_GPU_UTIL' else value}"
            )
    return "\n".join(lines) + "\n"


class Prometheus:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{HERE}:{self._port}/api/v1/{path}?{query}", timeout=20) as answer:
            content = json.load(answer)
        assert content["status"] == "success"
        return content["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series that an expression comes to now."""
        return list(self.ask("query", query=expr)["result"])

    def wait_for(self, expr: str, seconds: float = 60) -> list[dict[str, Any]]:
        """The same, as soon as there are any."""
        return wait_until(lambda: self.query(expr), seconds, expr)


def wait_until(result: Callable[[], list[dict[str, Any]]], seconds: float, what: str) -> list[dict[str, Any]]:
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if found := result():
                return found
        assert time.monotonic() < until, f"nothing came of {what}"
        time.sleep(0.1)


@contextmanager
def serving(text: str) -> Iterator[int]:
    """The port at which that text is served."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((HERE, 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def running(*command: str | Path, log: Path) -> Iterator[None]:
    """A daemon, for as long as that."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def monitored(folder: Path, metrics: Path, gpus: str, scrape: str) -> Iterator[Prometheus]:
    """A Prometheus that has asked node_exporter and dcgm-exporter of this host.

    Args:
        folder: for what it writes.
        metrics: the folder of the textfile collector.
        gpus: what dcgm-exporter answers.
        scrape: its configuration, with the ports of both in the place of 9100 and 9400.
    """
    node_port, prometheus_port = free_ports(2)
    with serving(gpus) as dcgm_port, contextlib.ExitStack() as stack:
        configuration = folder / "prometheus.yml"
        for usual, port in (("9100", node_port), ("9400", dcgm_port)):
            scrape = scrape.replace(f":{usual}", f":{port}")
        configuration.write_text(f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n{scrape}")
        exporter = ("prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile")
        stack.enter_context(
            running(
                *exporter,
                f"--collector.textfile.directory={metrics}",
                f"--web.listen-address={HERE}:{node_port}",
                log=folder / "exporter.log",
            )
        )
        stack.enter_context(
            running(
                "prometheus",
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={HERE}:{prometheus_port}",
                log=folder / "prometheus.log",
            )
        )
        yield Prometheus(prometheus_port)
