"""The doctor's report: a line for each layer, a verdict, and nothing has changed."""

import os

import pytest

from dev import doctor
from tests.conftest import Store, free_port
from tests.support.examination import ORDER, Account, Examine


def test_where_all_is_well_each_layer_has_a_line_and_nothing_has_changed(
    examine: Examine, store: Store, account: Account
) -> None:
    look = "CHECKSUM TABLE conversations, messages, schema_migrations"
    before = store.rows("SHOW TABLES"), store.rows(look)
    report = examine(**account("ALL ON {dbs}.*"))
    assert [(layer["layer"], layer["status"]) for layer in report.told["layers"]] == [(name, "ok") for name in ORDER]
    assert (report.status, report.told["ok"], report.told["failing"], report.told["not_looked_at"]) == (0, True, [], [])
    assert (store.rows("SHOW TABLES"), store.rows(look)) == before


def test_people_get_one_line_a_layer_and_a_verdict(
    examine: Examine, account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    examine(**account("ALL ON {dbs}.*"))  # leaves the environment as it made it
    assert doctor.main([]) == 0
    *lines, empty, verdict = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in ORDER]
    assert (empty, verdict) == ("", "All is well.")


def test_the_verdict_names_the_layer_to_begin_with_and_what_was_not_looked_at(
    examine: Examine, capsys: pytest.CaptureFixture[str]
) -> None:
    examine(DB_PORT=str(free_port()), TOOLSETS="nix")
    assert doctor.main([]) == 1
    *_, unseen, verdict = capsys.readouterr().out.splitlines()
    assert unseen == "Not looked at: login, server, charset, privileges, schema."
    assert verdict == "Where it fails: network, tools. Begin with network."


def test_the_environment_is_left_as_it_was(examine: Examine) -> None:
    examine(TRACE_RETENTION_DAYS=None)
    assert "TRACE_RETENTION_DAYS" not in os.environ
