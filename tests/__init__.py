import pytest

pytest.register_assert_rewrite(
    "tests.support"
)  # an assertion there that fails tells what it saw, as one of a test does
