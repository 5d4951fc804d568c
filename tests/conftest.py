"""What all tests share: the option that rewrites golden texts, Hypothesis without a clock on shared machines, and eight
virtual devices for JAX, which are asked for before anything imports it."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

settings.register_profile("mtfc", deadline=None)
settings.load_profile("mtfc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the expected texts; read the diff after"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
