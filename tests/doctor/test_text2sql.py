"""The layer `text2sql`: databases, accounts and policies that do not do, and no password is shown."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Store, free_port
from tests.support.examination import PASSWORD, Account, Examine

POLICY = """
[tables.conversations]
hide = ["metadata"]
[tables.messages]
columns = ["conversation_id", "role", "content"]
"""


@pytest.fixture
def to_ask(tmp_path: Path, store: Store, account: Account) -> Callable[..., dict[str, str]]:
    """The settings of Text2SQL for an account with grants and a policy; other parts of the URL by name."""

    def make(*grants: str, policy: str = POLICY, **other: object) -> dict[str, str]:
        made = account(*grants)
        (tmp_path / "policy.toml").write_text(policy, encoding="utf-8")
        given = {"user": made["DB_USER"], "password": PASSWORD, "port": store.settings["db_port"]}
        given |= {"host": store.settings["db_host"], "database": made["DB_NAME"]} | other
        url = "mysql://{user}:{password}@{host}:{port}/{database}".format_map(given)
        return {"TOOLSETS": "text2sql", "TEXT2SQL_URL": url, "TEXT2SQL_POLICY": str(tmp_path / "policy.toml")}

    return make


ToAsk = Callable[..., dict[str, str]]


def test_a_database_that_may_only_be_read_is_well_and_no_password_is_shown(examine: Examine, to_ask: ToAsk) -> None:
    report = examine(**to_ask("SELECT ON {dbs}.*"))
    layer = report.layer("text2sql")
    assert layer["status"] == "ok" and "2 readable tables" in layer["found"] and "as doctor_0" in layer["found"]
    assert PASSWORD not in json.dumps(report.told)


def test_without_the_toolset_there_is_no_line_on_it(examine: Examine) -> None:
    assert "text2sql" not in [layer["layer"] for layer in examine().told["layers"]]


def test_an_account_that_may_write_is_told_of_with_the_way_out(examine: Examine, to_ask: ToAsk) -> None:
    report = examine(**to_ask("SELECT, INSERT, DROP ON {dbs}.*"))
    report.assert_warns("text2sql", "DROP, INSERT", "GRANT SELECT ON `")
    assert "dangerous" not in report.text("text2sql")
    report = examine(**to_ask("SELECT ON {dbs}.*", "FILE ON *.*"))
    report.assert_warns("text2sql", "FILE is dangerous")
    report = examine(**to_ask("ALL PRIVILEGES ON *.*"))
    report.assert_warns("text2sql", "FILE, SUPER", "dangerous", "put it into TEXT2SQL_URL")


def test_a_database_that_cannot_be_asked_is_told_apart(examine: Examine, to_ask: ToAsk) -> None:
    well = "SELECT ON {dbs}.*"
    for other, *words in (
        (
            {"port": free_port()},
            "connection_failed",
            "Start it, or mend the place in TEXT2SQL_URL (from the environment)",
        ),
        ({"password": "another-password-1"}, "permission_denied", "Mend user and password"),
        ({"database": "nowhere"}, "nowhere", "TEXT2SQL_URL"),
    ):
        report = examine(**to_ask(well, **other))
        report.assert_fails("text2sql", *words, "--sample shop")
        assert PASSWORD not in json.dumps(report.told) and "another-password-1" not in json.dumps(report.told)


def test_a_policy_that_does_not_fit_is_told_of(examine: Examine, to_ask: ToAsk) -> None:
    well = "SELECT ON {dbs}.*"
    report = examine(**to_ask(well, policy=POLICY + '[tables."订单"]\n'))
    report.assert_warns("text2sql", "not there: 订单", "python -m text2sql policy")
    report = examine(**to_ask(well, policy='[tables.conversations]\nhide = ["metadta"]\n'))
    report.assert_warns("text2sql", "conversations has no metadta (nothing is hidden by such a name)", "policy.toml")
    report = examine(**to_ask(well, policy="[tables.nothing]\n"))
    report.assert_fails("text2sql", "none of the 1 tables", "is for another database")
    report = examine(**to_ask(well, policy="nonsense"))
    report.assert_fails("tools", "cannot be read as TOML")
    assert report.told["not_looked_at"] == ["text2sql"]


def test_a_file_of_sqlite_is_asked_too(examine: Examine, to_ask: ToAsk, tmp_path: Path) -> None:
    settings = to_ask("SELECT ON {dbs}.*") | {"TEXT2SQL_URL": f"sqlite:///{tmp_path}/none.db"}
    examine(**settings).assert_fails("text2sql", "none.db", "unable to open", "TEXT2SQL_URL")
