"""Environment variables that Kubernetes invents for Services."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from slacktide.cli.arguments import take_service_links
from slacktide.cli.main import app

METRICS = {
    "SLACKTIDE_METRICS_SERVICE_HOST": "10.0.0.7",
    "SLACKTIDE_METRICS_SERVICE_PORT": "8002",
    "SLACKTIDE_METRICS_SERVICE_PORT_METRICS": "8002",
    "SLACKTIDE_METRICS_PORT": "tcp://10.0.0.7:8002",
    "SLACKTIDE_METRICS_PORT_8002_TCP": "tcp://10.0.0.7:8002",
    "SLACKTIDE_METRICS_PORT_8002_TCP_PROTO": "tcp",
    "SLACKTIDE_METRICS_PORT_8002_TCP_PORT": "8002",
    "SLACKTIDE_METRICS_PORT_8002_TCP_ADDR": "10.0.0.7",
}
"""For a Service that is called slacktide-metrics."""


def settings_with(**environment: str) -> Any:
    words = ["serve", "x", "--print-config"]
    result = CliRunner().invoke(app, words, env=environment)
    return json.loads(result.stdout) if result.exit_code == 0 else result.stderr


@pytest.mark.parametrize("service", ["HTTP", "GRPC", "METRICS", "CONTROL", "SERVE", ""])
def test_addresses_of_services_are_no_settings(service: str) -> None:
    prefix = f"SLACKTIDE_{service}_" if service else "SLACKTIDE_"
    links = {name.replace("SLACKTIDE_METRICS_", prefix): value for name, value in METRICS.items()}
    assert settings_with(**links) == settings_with()


@pytest.mark.parametrize("value", ["udp://10.0.0.7:53", "sctp://[fd00::7]:9"])
def test_every_protocol_of_a_service_is_known(value: str) -> None:
    environment = {"SLACKTIDE_CONTROL_PORT": value, "SLACKTIDE_CONTROL_HOST": value}
    assert settings_with(**environment) == settings_with()


def test_stated_ports_and_hosts_count_and_wrong_ones_are_refused() -> None:
    assert settings_with(SLACKTIDE_METRICS_PORT="9002")["metrics_port"] == 9002
    assert settings_with(SLACKTIDE_HOST="0.0.0.0")["host"] == "0.0.0.0"
    assert "expected a port" in settings_with(SLACKTIDE_METRICS_PORT="http://10.0.0.7:8002")


def test_only_variables_of_ours_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**METRICS, "OTHER_PORT": "tcp://10.0.0.8:80"}.items():
        monkeypatch.setenv(name, value)
    assert take_service_links() == ["SLACKTIDE_METRICS_PORT=tcp://10.0.0.7:8002"]
    assert "SLACKTIDE_METRICS_PORT" not in os.environ
    assert os.environ["OTHER_PORT"] == "tcp://10.0.0.8:80"


def test_the_manifest_keeps_them_out() -> None:
    folder = Path(__file__).parents[2] / "deploy" / "kubernetes"
    documents = yaml.safe_load_all((folder / "slacktide.yaml").read_text())
    pods = [
        document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] == "Deployment"
    ]
    assert [pod["enableServiceLinks"] for pod in pods] == [False]
