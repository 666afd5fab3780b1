"""Chat templates: as transformers renders them, in a sandbox, within limits."""

import json

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from drumline.errors import InvalidRequest
from gateway.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi 😀"}, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "<b>"}]
TEMPLATES = [
    "{% for m in messages %}{{ m['role'] }}: {{ m.content | trim }}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}",
    "{{ bos_token }}{% for m in messages %}\n"
    "    {%- if loop.index0 == 1 %}{% continue %}{% endif %}\n {{ m | tojson }}\n{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for m in messages %}{% set ns.x = ns.x + 1 %}{% endfor %}"
    "{{ ns.x }}{{ messages[-1].content.upper() }}",
    "{%- if tools %}T{% endif %}{{ messages | tojson(indent=2) }}{{ '-' * 10 }}",
]


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("opened", [True, False])
def test_renders_as_transformers_does(source: str, opened: bool) -> None:
    ours = ChatTemplate(source, special_tokens={"bos_token": "<s>"}).render(MESSAGES, add_generation_prompt=opened)
    theirs, _ = render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=opened, bos_token="<s>")
    assert ours == theirs[0]


def test_b053_the_templates_own_reason_is_told() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", special_tokens={})
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template.render(MESSAGES, add_generation_prompt=True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**9 }}",
        "{{ 2 ** 99 }}",
        "{% for i in range(10**9) %}{{ i }}{% endfor %}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'xxxxxxxx' }}{% endfor %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[99].role.x }}",
    ],
)
def test_b098_b103_hostile_or_broken_templates_are_bounded(source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, special_tokens={}).render(MESSAGES, add_generation_prompt=True)
    assert "0x" not in caught.value.message
    json.dumps(caught.value.message)
