"""The wheel, built and installed as another backend would have it, and a backend that has modules named as ours are."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import ROOT, SOON, Store, free_port
from tests.support.scripted_model import ScriptedModel

HOST = Path(__file__).parent / "host"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def run(command: Sequence[str | Path], cwd: Path, environment: dict[str, str] | None = None) -> str:
    """What a program prints. It has to end well."""
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run([*PIP, "wheel", ROOT, "--no-deps", "--no-build-isolation", "--wheel-dir", folder], folder)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    run([*PIP, "install", "--no-deps", "--target", folder, wheel], folder)
    return folder


@dataclass
class Host:
    """A folder of another backend's, with the wheel on its path and the checkout not."""

    folder: Path
    environment: dict[str, str]

    def python(self, *arguments: str) -> str:
        """What Python prints here. A warning is an error."""
        return run([sys.executable, "-W", "error", *arguments], self.folder, self.environment)


MakeHost = Callable[..., Host]


@pytest.fixture(scope="session")
def host_for(installed: Path, store: Store, tmp_path_factory: pytest.TempPathFactory) -> MakeHost:
    """Makes a copy of the host, or an empty folder: `host_for(model)`, `host_for(model, files=False)`."""

    def make(model: ScriptedModel, files: bool = True) -> Host:
        folder = tmp_path_factory.mktemp("host")
        if files:
            shutil.copytree(HOST, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")
        environment = {name: value for name, value in os.environ.items() if name in kept}
        settings = SOON | store.settings | {"base_url": model.base_url, "api_key": "sk-test", "default_model": "s"}
        environment |= {name.upper(): str(value) for name, value in settings.items()}
        environment |= {"ASSISTANT": json.dumps(settings), "PYTHONPATH": os.pathsep.join([str(folder), str(installed)])}
        return Host(folder, environment)

    return make


@contextlib.contextmanager
def serving(host: Host, app: str = "main:app", workers: int = 1) -> Iterator[httpx2.Client]:
    """The host under uvicorn, and a client of it. `host.log` in its folder is what it wrote."""
    port = free_port()
    command = [sys.executable, "-W", "error", "-m", "uvicorn", app, "--port", str(port), "--workers", str(workers)]
    with open(host.folder / "host.log", "wb") as log:
        process = subprocess.Popen(command, cwd=host.folder, env=host.environment, stdout=log, stderr=log)
    client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)
    try:
        wait_until_served(client, process, host)
        yield client
    finally:
        client.close()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def wait_until_served(client: httpx2.Client, process: "subprocess.Popen[bytes]", host: Host) -> None:
    for _ in range(1200):
        with contextlib.suppress(httpx2.TransportError):
            client.get("/openapi.json")
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"the host did not start: {(host.folder / 'host.log').read_text(errors='replace')[-3000:]}")


def bearer(user: str) -> dict[str, str]:
    return {"authorization": f"Bearer {user}"}


def message(conversation_id: str, text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"conversation_id": conversation_id, "message": text, **more}
