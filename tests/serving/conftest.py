import pytest
from openai import OpenAI

from serving import listening, make_served, tiny


@pytest.fixture(scope="session")
def served_model():
    """The model of the servers, and its tokenizer."""
    return tiny()


@pytest.fixture(scope="module")
def served(served_model):
    return make_served(*served_model)


@pytest.fixture(scope="module")
def address(served):
    with listening(served) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client
