"""/v1/models, and what is the folder's own."""

import openai
import pytest
from openai import OpenAI

from tests.conftest import ROOT


def test_the_model_is_listed_and_found_by_its_name(api: OpenAI) -> None:
    assert [one.id for one in api.models.list()] == ["scripted"]
    assert api.models.retrieve("scripted").object == "model"
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("org/other")


def test_without_the_folder_the_core_knows_nothing_of_it() -> None:
    for file in ROOT.glob("*.py"):
        mentions = [line for line in file.read_text(encoding="utf-8").splitlines() if "openai_api" in line]
        allowed = ["import openai_api", "    openai_api.register(runtime)"] if file.name == "main.py" else []
        assert mentions == allowed, file.name
