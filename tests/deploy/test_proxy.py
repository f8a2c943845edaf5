"""The example of a reverse proxy with TLS: its configuration, and the Compose file that adds it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from app.settings import Settings
from scrimp_server.api import BoundedHttp

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "deploy" / "proxy" / "nginx.conf"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
WITH_TLS: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.tls.yml").read_text())
TOKEN = re.compile(r"#[^\n]*|\"[^\"]*\"|[{};]|[^\s{};]+")


@dataclass
class Block:
    """A block of nginx' configuration: its words, its directives in order, its blocks."""

    words: list[str]
    directives: list[list[str]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def of(self, name: str) -> list[str]:
        (found,) = [each[1:] for each in self.directives if each[0] == name]
        return found

    def inside(self, *words: str) -> list[Block]:
        return [each for each in self.blocks if each.words[: len(words)] == list(words)]


def parsed(text: str) -> Block:
    """Reads blocks and directives; raises ValueError where one does not end."""
    stack, words = [Block([])], list[str]()
    for token in TOKEN.findall(text):
        if token.startswith("#"):
            continue
        if token == ";":
            if not words:
                raise ValueError("an empty directive")
            stack[-1].directives.append(words)
            words = []
        elif token == "{":
            stack.append(Block(words))
            stack[-2].blocks.append(stack[-1])
            words = []
        elif token == "}":
            if words or len(stack) == 1:
                raise ValueError(f"a block ends within {words}")
            stack.pop()
        else:
            words.append(token.strip('"'))
    if words or len(stack) > 1:
        raise ValueError("a block or a directive does not end")
    return stack[0]


@pytest.fixture
def http() -> Block:
    (found,) = parsed(CONFIG.read_text()).inside("http")
    return found


def test_the_parser_refuses_what_does_not_end() -> None:
    for wrong in ("a {", "a b", "a { b }", "}", "a;;"):
        with pytest.raises(ValueError, match=r"end|empty"):
            parsed(wrong)


def test_the_proxy_does_what_the_documentation_asks_of_it(http: Block) -> None:
    plain, other, tls = http.inside("server")
    (location,) = tls.inside("location", "/")
    assert http.of("limit_conn") == ["clients", "64"] and "zone=clients:10m" in http.of("limit_conn_zone")
    assert plain.of("return")[0] == "308" and other.of("ssl_reject_handshake") == ["on"]
    assert tls.of("ssl_protocols") == ["TLSv1.2", "TLSv1.3"] and "ssl" in tls.of("listen")
    assert tls.of("client_max_body_size") == ["0"] and location.of("proxy_request_buffering") == ["off"]
    headers = {
        name: value for _, name, value in (each for each in location.directives if each[0] == "proxy_set_header")
    }
    assert headers == {
        "Connection": "",
        "Host": "$host",
        "X-Forwarded-For": "$remote_addr",
        "X-Request-Id": "$request_id",
        "Traceparent": "",
    }


def test_its_times_fit_the_api_s(http: Block) -> None:
    (upstream,) = http.inside("upstream", "api")
    assert upstream.of("server") == [f"api:{Settings.model_fields['port'].default}"]
    assert upstream.of("keepalive_timeout") == ["4s"]  # under uvicorn's 5 s
    longest = sum(Settings.model_fields[name].default for name in ("parse_time_s", "parse_wait_s"))
    (location,) = http.inside("server")[2].inside("location", "/")
    assert float(location.of("proxy_read_timeout")[0].removesuffix("s")) > longest
    assert location.of("proxy_max_temp_file_size") == ["0"]  # its folder is memory
    assert http.inside("server")[2].of("client_header_timeout") == [f"{BoundedHttp.head_time_s:g}s"]


def test_it_writes_only_where_the_container_lets_it(http: Block) -> None:
    """Its root is read only."""
    written = [each[1] for each in http.directives if each[0].endswith("_temp_path")]
    assert len(written) == 5 and all(each.startswith("/tmp/") for each in written)  # noqa: S108 - in the container


def test_compose_adds_it() -> None:
    services = {name: dict(service) for name, service in COMPOSE["services"].items()}
    for name, service in WITH_TLS["services"].items():
        before = services.get(name, {})
        environment = before.get("environment", {}) | service.get("environment", {})
        services[name] = before | service | ({"environment": environment} if environment else {})
    PyCompose.from_yaml(yaml.safe_dump(COMPOSE | {"services": services})).validate()
    proxy, api = WITH_TLS["services"]["proxy"], services["api"]
    assert proxy["networks"] == ["front"] and "front" in api["networks"]
    assert (proxy["read_only"], proxy["cap_drop"], proxy["tmpfs"]) == (True, ["ALL"], ["/tmp"])  # noqa: S108
    mounted = [each.split(":")[0] for each in proxy["volumes"]]
    assert mounted == ["./deploy/proxy/nginx.conf", "./deploy/proxy/tls"] and (ROOT / mounted[0]).is_file()
    assert {each.split(":")[1] for each in proxy["ports"]} == {"8080", "8443"}


def test_the_api_s_settings_behind_it_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WITH_TLS["services"]["api"]["environment"].items():
        monkeypatch.setenv(name, value)
    settings = Settings(home=tmp_path)
    assert settings.behind_tls and settings.trusted_proxies == 1
    (name,) = parsed(CONFIG.read_text()).inside("http")[0].inside("server")[2].of("server_name")
    assert name in settings.allowed_hosts and "127.0.0.1" in settings.allowed_hosts


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_takes_it(tmp_path: Path) -> None:
    key, certificate = tmp_path / "privkey.pem", tmp_path / "fullchain.pem"
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=scrimp.example.org"]
    subprocess.run([*line, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    text = CONFIG.read_text().replace("/etc/nginx/tls", str(tmp_path)).replace("server api:", "server 127.0.0.1:")
    (tmp_path / "nginx.conf").write_text(text)
    subprocess.run(["nginx", "-t", "-c", str(tmp_path / "nginx.conf")], check=True, capture_output=True)
