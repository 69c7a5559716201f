"""Settings: what is read, what is refused and how it is said."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from config import Settings
from dev import configuration
from dev.common import DevError
from errors import ConfigError
from main import create_app


def read(**environ: str) -> Settings:
    return Settings.from_env(environ)


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = read()
    assert (settings.db_host, settings.db_port, settings.db_name) == ("127.0.0.1", 3306, "agent_demo")
    assert (settings.max_steps, settings.max_tool_calls, settings.db_pool_size) == (10, 30, 10)
    assert (settings.turn_timeout_s, settings.model_timeout_s, settings.tool_timeout_s) == (300, 60, 30)
    assert (settings.history_turns, settings.history_chars, settings.max_in_flight) == (20, 60_000, 1000)
    assert (settings.max_message_chars, settings.max_answer_chars) == (32_000, 200_000)
    assert (settings.toolsets, settings.conversation_busy, settings.log_format) == (("calculator",), "wait", "text")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("DB_PORT", "abc", "integer"),
        ("DB_PORT", "70000", "65535"),
        ("MAX_STEPS", "0", "greater than or equal to 1"),
        ("MAX_TOOL_CALLS", "-1", "greater than or equal to 0"),
        ("TURN_TIMEOUT_S", "soon", "number"),
        ("CONVERSATION_BUSY", "queue", "'wait' or 'reject'"),
        ("LOG_FORMAT", "xml", "'classroom'"),
        ("BASE_URL", "api.example.com", "https://"),
        ("BASE_URL", "ftp://example.com", "https://"),
    ],
)
def test_a_bad_value_is_named_with_what_is_expected(name: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(**{name: value})
    assert name in str(raised.value)
    assert expected in str(raised.value)


def test_all_bad_values_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"DB_PORT.*MAX_STEPS"):
        read(DB_PORT="x", MAX_STEPS="y")


@pytest.mark.parametrize(
    "environ",
    [
        {"API_KEY": "sk secret", "MAX_STEPS": "x"},
        {"API_KEY": "sk-sécret"},
        {"BASE_URL": "https://user:secret@example.com/v1"},
        {"DB_PASSWORD": "secret", "DB_PORT": "x"},
    ],
    ids=str,
)
def test_no_message_and_no_picture_of_the_settings_holds_a_secret(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        read(**environ)
    assert "secret" not in str(raised.value)
    assert "hidden" not in repr(read(API_KEY="sk-hidden", DB_PASSWORD="hidden"))


def test_blanks_and_line_breaks_round_a_value_are_nobodys() -> None:
    settings = read(
        API_KEY="sk-x\n", DB_PASSWORD=" with spaces \r\n", MAX_STEPS=" 3 ", BASE_URL="http://127.0.0.1:9/v1/ "
    )
    assert settings.api_key.get_secret_value() == "sk-x"
    assert settings.db_password.get_secret_value() == " with spaces "
    assert (settings.max_steps, settings.base_url) == (3, "http://127.0.0.1:9/v1")


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert read(MAX_STEPS="", DB_SOCKET="", BASE_URL="").max_steps == 10


def test_the_environment_wins_over_the_file_and_a_dollar_sign_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "设置.env"
    file.write_text("DB_PASSWORD='pa$$word${HOME}'\nMAX_STEPS=4\nSYSTEM_PROMPT=你好\n", encoding="utf-8")
    monkeypatch.setenv("ENV_FILE", str(file))
    monkeypatch.setenv("MAX_STEPS", "5")
    settings = Settings.from_env()
    assert settings.db_password.get_secret_value() == "pa$$word${HOME}"
    assert (settings.max_steps, settings.prompt()) == (5, "你好")


@pytest.mark.parametrize("encoding", ["gbk", "utf-16"])
def test_an_env_file_that_is_not_utf_8_is_named(tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "设置.env"
    file.write_bytes("DEFAULT_MODEL=中文\n".encode(encoding))
    monkeypatch.setenv("ENV_FILE", str(file))
    with pytest.raises(ConfigError, match="设置.env is not UTF-8 text: save it as UTF-8"):
        Settings.from_env()
    with pytest.raises(DevError, match="设置.env is not UTF-8 text"):
        configuration.read()


def test_the_mark_that_some_editors_begin_a_file_with_is_not_part_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".env"
    file.write_text("MAX_STEPS=7\n", encoding="utf-8-sig")
    monkeypatch.setenv("ENV_FILE", str(file))
    assert Settings.from_env().max_steps == 7
    assert configuration.read()["MAX_STEPS"] == "7"


def test_certificates_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("none", encoding="ascii")
    for file in (tmp_path / "ca.pem", tmp_path / "nowhere.pem"):
        with pytest.raises(ConfigError, match="DB_SSL_CA is no file of certificates"):
            create_app(read(DB_SSL_CA=str(file)))


def test_a_prompt_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("请简短回答。\n", encoding="utf-8")
    assert read(SYSTEM_PROMPT_FILE=str(file)).prompt() == "请简短回答。"
    with pytest.raises(ConfigError, match="SYSTEM_PROMPT_FILE"):
        create_app(read(SYSTEM_PROMPT_FILE=str(tmp_path / "none")))


def test_a_capability_reads_its_own_section() -> None:
    class Reports(BaseModel):
        max_rows: int = 100

    assert read(REPORTS_MAX_ROWS="7").section("reports", Reports).max_rows == 7
    with pytest.raises(ConfigError, match="REPORTS_MAX_ROWS"):
        read(REPORTS_MAX_ROWS="many").section("reports", Reports)


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        read().max_steps = 3  # type: ignore[misc]
