"""What a client reads when its body is wrong."""

import pytest
from pydantic import ValidationError

from gateway.errors import of_validation
from gateway.schemas import ChatBody


def test_a_check_of_ours_reads_as_it_was_written() -> None:
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate({"messages": [{"role": "user", "content": [picture]}]})
    error = of_validation(caught.value.errors())
    assert error.param == "messages.0.content"
    assert error.message == "messages.0.content: only text parts are supported"
