"""The layer `configuration`: settings that are bad or odd, and where each comes from; no secret is shown."""

from pathlib import Path

from tests.support.examination import KEY, Examine


def test_each_bad_setting_is_named_with_where_it_comes_from(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MAX_STEPS=ten\n")
    report = examine(ENV_FILE=str(tmp_path / ".env"), DB_PORT="99999", API_KEY=f"{KEY} with spaces")
    report.assert_fails("configuration", "MAX_STEPS is 'ten'", "DB_PORT is '99999'", "API_KEY: ")
    report.assert_fails("configuration", f"MAX_STEPS (from {tmp_path}/.env)", "DB_PORT (from the environment)")
    assert KEY not in str(report.told)


def test_settings_of_the_parts_are_settings(examine: Examine) -> None:
    examine(API_KEYS_FILE="/nowhere").assert_fails("configuration", "API_KEYS_FILE (from the environment)")
    assert KEY not in str(examine(API_KEYS=f"me:{KEY}").told)


def test_where_each_setting_comes_from(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"API_KEY={KEY}\nMAX_STEPS=7\n")
    report = examine(ENV_FILE=str(tmp_path / ".env"), API_KEY=None, MAX_STEPS="5", TOOLSETS=None)
    settings = report.layer("configuration")["settings"]
    assert settings["API_KEY"] == {"source": f"{tmp_path}/.env", "set": True}
    assert settings["MAX_STEPS"] == {"source": "environment", "value": 5}
    assert settings["TOOLSETS"] == {"source": "dev up", "value": ["calculator", "clock"]}
    assert settings["HISTORY_TURNS"] == {"source": "default", "value": 20}
    assert "value" not in settings["DB_PASSWORD"] and "value" not in settings["BASE_URL"]
    assert f"from {tmp_path}/.env: API_KEY" in report.text("configuration")


def test_settings_that_do_not_do_what_they_seem_to_are_warned_of(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"API_KEY：{KEY}\nMAX_STEPS=3\nMAX_STEPS=4\nDEFAUT_MODEL=x\nHISTORY_TURNS=9\n")
    report = examine(ENV_FILE=str(tmp_path / ".env"), HISTORY_TURNS="")
    report.assert_warns(
        "configuration", "line 1 of ", "MAX_STEPS stands 2 times", "DEFAUT_MODEL", "DEFAULT_MODEL is meant"
    )
    report.assert_warns("configuration", "HISTORY_TURNS is empty in the environment", "Unset HISTORY_TURNS.")


def test_files_that_settings_name_have_to_be_there(examine: Examine) -> None:
    examine(SYSTEM_PROMPT_FILE="/nowhere").assert_fails("configuration", "SYSTEM_PROMPT_FILE cannot be read")
    examine(DB_SSL_CA="/nowhere").assert_fails("configuration", "DB_SSL_CA", "No such file")
