"""The doctor where all is well but for what a test breaks, with accounts, a database and a checkout to break."""

import contextlib
import datetime
import ipaddress
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dev import doctor
from tests.conftest import ROOT, Store
from tests.support.examination import KEY, PASSWORD, Account, Examine, Report, clean_environment
from tests.support.scripted_model import ScriptedModel


@pytest.fixture
def examine(
    store: Store, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Examine:
    """Run the doctor where all is well, but for the variables given; None takes one away."""

    def run(*arguments: str, **other: str | None) -> Report:
        usual = {name.upper(): str(value) for name, value in store.settings.items()}
        usual |= {"BASE_URL": model.base_url, "API_KEY": KEY, "DEFAULT_MODEL": "scripted", "TOOLSETS": "calculator"}
        environ = {name: value for name, value in (clean_environment() | usual | other).items() if value is not None}
        for name in set(os.environ) - set(environ):
            monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        status = doctor.main(["--json", *arguments])
        output = "".join(capsys.readouterr())
        for name in ("API_KEY", "DB_PASSWORD"):
            assert len(environ.get(name, "")) < 8 or environ[name] not in output
        return Report(status, json.loads(output))

    return run


@pytest.fixture(scope="module")
def execute(store: Store) -> Iterator[Callable[..., None]]:
    """Carries out statements as an administrator of the database server."""
    with contextlib.closing(store.server.admin() if store.server else store.connect()) as connection:

        def run(*statements: str) -> None:
            with connection.cursor() as cursor:
                for statement in statements:
                    try:
                        cursor.execute(statement)
                    except pymysql.err.OperationalError as error:
                        if error.args[0] not in (1044, 1227):
                            raise
                        pytest.skip("TEST_DATABASE_URL names an account that is no administrator")

        yield run


@pytest.fixture
def account(store: Store, execute: Callable[..., None]) -> Iterator[Account]:
    """Makes an account with grants, `account("SELECT ON {db}.*")`, and gives its settings."""
    names: list[str] = []

    def make(*grants: str, database: str | None = None) -> dict[str, str]:
        database = database or store.settings["db_name"]
        names.append(f"doctor_{len(names)}")
        execute(f"DROP USER IF EXISTS '{names[-1]}'@'%'", f"CREATE USER '{names[-1]}'@'%' IDENTIFIED BY '{PASSWORD}'")
        pattern = database.replace("_", r"\_")
        for grant in grants:
            execute(f"GRANT {grant.format(db=f'`{database}`', dbs=f'`{pattern}`')} TO '{names[-1]}'@'%'")
        return {"DB_USER": names[-1], "DB_PASSWORD": PASSWORD, "DB_NAME": database}

    yield make
    for name in names:
        execute(f"DROP USER '{name}'@'%'")


@pytest.fixture
def other_database(execute: Callable[..., None]) -> Iterator[str]:
    """A database without tables."""
    execute("DROP DATABASE IF EXISTS doctor_other", "CREATE DATABASE doctor_other CHARACTER SET utf8mb4")
    yield "doctor_other"
    execute("DROP DATABASE doctor_other")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this checkout to break."""
    folder = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "tests", "docs", ".*")
    shutil.copytree(ROOT, folder, ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that nobody trusts, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False).sign(key, hashes.SHA256())
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, *plain))
    return path
