"""The layer `model`: services that refuse, hang up, have another address, no trusted certificate or a proxy between."""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import free_port
from tests.support.examination import KEY, PASSWORD, Examine
from tests.support.scripted_model import ScriptedModel
from tests.support.talking_server import server_that_says


class Vendor(http.server.ThreadingHTTPServer):
    """A model service that answers each method and path as it is told to, and everything else with 404."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        super().__init__(("127.0.0.1", 0), Answer)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A handshake that fails is no news."""


class Answer(http.server.BaseHTTPRequestHandler):
    server: Vendor

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        status, text = self.server.answers.get(f"{self.command} {self.path}", (404, "{}"))
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_no_key(examine: Examine) -> None:
    examine(API_KEY=None).assert_fails("model", "API_KEY not set", ".env")
    examine(API_KEY=None, DEFAULT_MODEL="").assert_fails("model", "API_KEY and DEFAULT_MODEL not set")


def test_without_a_url_and_a_key_it_is_the_demo_model(examine: Examine) -> None:
    report = examine(API_KEY=None, BASE_URL=None)
    assert report.status == 0
    report.assert_says("model", "ok", "demo")
    proxy = {"HTTP_PROXY": "http://proxy.invalid:3128"}
    examine(API_KEY=None, BASE_URL=None, **proxy).assert_warns("model", "HTTP_PROXY", "NO_PROXY=127.0.0.1")


def test_the_model_refuses_the_connection(examine: Examine) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    examine(BASE_URL=url).assert_fails("model", url, "connection refused", "BASE_URL (from the environment)")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "the key is refused (401)"),
        (403, "the key is refused (403)"),
        (402, "wants to be paid"),
        (429, "too many requests"),
        (503, "in trouble (503)"),
        (418, "refused (418)"),
    ],
)
def test_the_model_refuses_the_request(examine: Examine, vendor: Vendor, status: int, words: str) -> None:
    vendor.answers["GET /v1/models"] = (status, json.dumps({"error": {"message": f"bad key {KEY}"}}))
    report = examine(BASE_URL=f"http://127.0.0.1:{vendor.server_port}/v1")
    report.assert_fails("model", words)
    assert ("API_KEY (from the environment)" in report.text("model")) == (status in (401, 403))


def test_a_url_that_lacks_its_end_or_has_too_much_of_it(examine: Examine, vendor: Vendor) -> None:
    url = f"http://127.0.0.1:{vendor.server_port}"
    examine(BASE_URL=f"{url}/v2").assert_fails("model", "404", "usually ends with /v1")
    vendor.answers["GET /v1/models"] = (200, json.dumps({"data": [{"id": "scripted"}]}))
    examine(BASE_URL=url).assert_fails("model", "404", "lacks /v1", f"{url}/v1", "BASE_URL (from the environment)")
    report = examine(BASE_URL=f"{url}/v1/chat/completions")
    report.assert_fails("model", "404", "end before /chat/completions")
    vendor.answers["GET /models"] = (200, "<html>Welcome</html>")
    examine(BASE_URL=url).assert_fails("model", "no list of models", "/v1")


def test_a_service_without_a_list_of_models(examine: Examine, vendor: Vendor) -> None:
    url = f"http://127.0.0.1:{vendor.server_port}/v1"
    vendor.answers["POST /v1/chat/completions"] = (400, "{}")
    examine(BASE_URL=url).assert_warns("model", "no list of models", "--ask")


def test_a_model_that_is_not_on_the_list(examine: Examine) -> None:
    examine(DEFAULT_MODEL="scriptd").assert_warns("model", "scriptd is not on its list", "Near it: scripted", "--ask")


def test_asking_the_model(examine: Examine, model: ScriptedModel, vendor: Vendor) -> None:
    model.says("OK")
    report = examine("--ask")
    assert report.status == 0
    report.assert_says("model", "ok", "scripted at", "answers")
    assert model.requests[0]["max_tokens"] == 1
    model.fails(400, "use max_completion_tokens").says("OK")
    assert examine("--ask").status == 0
    model.fails(404, "no such model")
    examine("--ask", DEFAULT_MODEL="scriptd").assert_fails("model", "has no model scriptd", "Near it: scripted")
    vendor.answers["POST /v1/chat/completions"] = (401, "{}")
    examine("--ask", BASE_URL=f"http://127.0.0.1:{vendor.server_port}/v1").assert_fails("model", "(401)", "API_KEY")
    vendor.answers["POST /v1/chat/completions"] = (200, "[]")
    examine("--ask", BASE_URL=f"http://127.0.0.1:{vendor.server_port}/v1").assert_fails("model", "not as a chat model")


def test_a_model_that_does_not_answer_or_hangs_up(examine: Examine) -> None:
    with server_that_says(b"") as port:
        examine(BASE_URL=f"http://127.0.0.1:{port}/v1", MODEL_TIMEOUT_S="0.3").assert_fails("model", "a timeout")
    with server_that_says(b"", hang_up=True) as port:
        report = examine(BASE_URL=f"http://127.0.0.1:{port}/v1")
        report.assert_fails("model", "https:// where BASE_URL says http://")
        report = examine(BASE_URL=f"https://127.0.0.1:{port}/v1")
        report.assert_fails("model", "VPN", "proxy")


def test_a_host_of_the_model_that_does_not_exist(examine: Examine) -> None:
    examine(BASE_URL="http://no-such-host.invalid/v1").assert_fails("model", "no host of this name", "BASE_URL")


def test_tls_that_cannot_be_trusted_or_is_not_there(
    examine: Examine, vendor: Vendor, certificate: Path, model: ScriptedModel
) -> None:
    report = examine(BASE_URL=model.base_url.replace("http:", "https:"))
    report.assert_fails("model", "no TLS is spoken there", "http://")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    vendor.socket = context.wrap_socket(vendor.socket, server_side=True)
    vendor.answers["GET /v1/models"] = (200, json.dumps({"data": [{"id": "scripted"}]}))
    url = f"https://127.0.0.1:{vendor.server_port}/v1"
    report = examine(BASE_URL=url)
    report.assert_fails("model", "the certificate is not trusted", "SSL_CERT_FILE", "Do not switch off the check")
    assert examine(BASE_URL=url, SSL_CERT_FILE=str(certificate)).status == 0
    examine(BASE_URL=url, SSL_CERT_FILE="/nowhere").assert_fails("model", "SSL_CERT_FILE")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the client, where a proxy has a password
@pytest.mark.parametrize("in_file", [False, True])
def test_a_proxy_that_interferes_is_named_without_its_password(examine: Examine, tmp_path: Path, in_file: bool) -> None:
    proxy = f"http://me:{PASSWORD}@127.0.0.1:{free_port()}"
    (tmp_path / ".env").write_text(f"HTTP_PROXY={proxy}\n")
    report = examine(ENV_FILE=str(tmp_path / ".env")) if in_file else examine(HTTP_PROXY=proxy)
    report.assert_fails("model", "connection refused", "HTTP_PROXY", "NO_PROXY=127.0.0.1")
    assert PASSWORD not in str(report.told)
    assert examine(HTTP_PROXY=proxy, NO_PROXY="127.0.0.1").status == 0


def test_proxies_of_other_kinds(examine: Examine) -> None:
    report = examine(ALL_PROXY=f"socks5://127.0.0.1:{free_port()}")
    report.assert_fails("model", "ALL_PROXY", "socks is not spoken")
    report = examine(HTTP_PROXY=f"carrier-pigeon://me:{PASSWORD}@127.0.0.1")
    report.assert_fails("model", "a proxy variable cannot be used", "HTTP_PROXY")
    assert PASSWORD not in str(report.told)
