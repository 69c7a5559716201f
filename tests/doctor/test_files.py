"""The layers `file` and `import`, each broken for real in a copy of the checkout."""

from pathlib import Path

import pytest

from tests.support.examination import KEY, ORDER, Examine, examine_copy


def test_a_module_with_a_hidden_ending_is_to_be_renamed(checkout: Path) -> None:
    (checkout / "tools.py").rename(checkout / "tools.py.txt")
    report = examine_copy(checkout)
    report.assert_fails("file", "not there: tools.py", "Rename tools.py.txt to tools.py.", "Install no package")
    assert report.told["not_looked_at"] == ORDER[1:]


def test_a_module_that_is_gone_is_to_be_restored(checkout: Path) -> None:
    (checkout / "memory.py").unlink()
    examine_copy(checkout).assert_fails("file", "not there: memory.py", "git checkout memory.py")


def test_a_folder_is_no_module(checkout: Path) -> None:
    (checkout / "memory.py").unlink()
    (checkout / "memory").mkdir()
    examine_copy(checkout).assert_fails("file", "not there: memory.py")


def test_a_file_that_hides_a_package_is_named(checkout: Path) -> None:
    (checkout / "openai.py").write_text("print('my first try')\n")
    examine_copy(checkout).assert_fails("file", "openai.py hides", "Rename")


def test_a_missing_schema_is_a_matter_of_files(checkout: Path) -> None:
    (checkout / "schema.sql").unlink()
    examine_copy(checkout).assert_fails("file", "schema.sql cannot be read", "git checkout schema.sql")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("# 设置\nDB_NAME=中文\n".encode("gbk"), "is not UTF-8, see line 1"),
        ("DB_NAME=x\n".encode("utf-16"), "is UTF-16"),
        (f"\ufeffAPI_KEY={KEY}\n".encode(), "byte order mark"),
    ],
)
def test_settings_in_another_encoding_are_a_matter_of_files(
    examine: Examine, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / ".env").write_bytes(content)
    examine(ENV_FILE=str(tmp_path / ".env")).assert_fails("file", words, "UTF-8")


def test_settings_that_are_a_folder_or_are_not_there(examine: Examine, tmp_path: Path) -> None:
    examine(ENV_FILE=str(tmp_path)).assert_fails("file", "cannot be read (Is a directory)")
    examine(ENV_FILE=str(tmp_path / "x.env")).assert_fails("file", "ENV_FILE names", "not there")


def test_settings_with_a_hidden_ending_are_hinted_at(checkout: Path) -> None:
    (checkout / ".env.txt").write_text(f"API_KEY={KEY}\n")
    report = examine_copy(checkout, ENV_FILE=".env")
    report.assert_fails("file", "ENV_FILE names")
    report = examine_copy(checkout, before="import os; del os.environ['ENV_FILE']", DB_HOST="127.0.0.1", DB_PORT="1")
    report.assert_says("file", "warn", "but .env.txt", "rename .env.txt to .env")


def test_a_fault_of_syntax_is_told_with_its_line(checkout: Path) -> None:
    path = checkout / "memory.py"
    path.write_text(path.read_text("utf-8") + "\nx = [1，2]\n", "utf-8")
    line = path.read_text("utf-8").count("\n")
    examine_copy(checkout).assert_fails("import", f"memory.py, line {line}: invalid character '，'", "git diff")


def test_a_missing_package_is_told_with_the_way_to_get_it(checkout: Path) -> None:
    report = examine_copy(checkout, before="sys.modules['dotenv'] = None")
    report.assert_fails("import", "config needs the package dotenv", "requirements.txt")


def test_a_name_that_a_module_does_not_have_is_told_with_the_place(checkout: Path) -> None:
    (checkout / "text.py").write_text("")
    examine_copy(checkout).assert_fails("import", "ImportError: cannot import name", ".py, line ")
