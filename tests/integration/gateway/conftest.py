"""A gateway before a scripted scheduler."""

from collections.abc import AsyncIterator

import pytest
from tokenizers import Tokenizer

from tests.support.gateway_house import House, gateway_house
from tests.support.scripted_scheduler import small_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture
async def house(tokenizer: Tokenizer) -> AsyncIterator[House]:
    async with gateway_house(tokenizer) as running:
        yield running
