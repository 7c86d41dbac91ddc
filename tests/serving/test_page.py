"""The page of the server in a browser."""

import re

import pytest

import specds
from browser import browsed
from serving import listening, make_served, tiny
from specds.serving.app import tenants_of

pytestmark = pytest.mark.browser

PROMPT = "for i in range(3):"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1300])
def test_a_chat_colors_accepted_tokens(width, scheme):
    model, tokenizer = tiny(context_length=256)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": PROMPT}])
    output = specds.generate(model, ids, max_nodes=0, max_new_tokens=256 - len(ids))
    text = tokenizer.decode(output.sequences[0, len(ids) :], skip_special_tokens=True)
    about = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with listening(make_served(model, tokenizer)) as address, browsed(address, **about) as page:
        page.wait_for_function("document.getElementById('name').textContent === 'tiny'")
        for _ in range(2):  # the second answer is drafted from the first one
            page.click("#clear")
            assert page.locator(".panel").count() == 0
            page.fill("#text", PROMPT)
            page.press("#text", "Enter")
            figures = page.locator(".assistant .faint", has_text="tokens a pass")
            figures.wait_for(timeout=60_000)
            assert page.text_content(".assistant pre") == text
        drafted = page.locator(".assistant .drafted")
        assert drafted.count() > 3
        color = drafted.first.evaluate("(token) => getComputedStyle(token).color")
        assert color != page.evaluate("getComputedStyle(document.body).color")
        rate = re.search(r"([\d.]+) tokens a pass", figures.text_content())
        assert float(rate[1]) > 1
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_reply_is_stopped(served_model):
    with listening(make_served(*served_model)) as address, browsed(address) as page:
        page.fill("#text", "x = 1\n" * 5)
        page.click("#send")
        page.dispatch_event("#stop", "click")  # it moves while the text grows
        page.locator(".assistant .faint", has_text=re.compile("stopped|a pass")).wait_for()


def test_a_server_with_keys_asks_for_one(served_model):
    served = make_served(*served_model, tenants=tenants_of("one"))
    with listening(served) as address, browsed(address, logs=("401",)) as page:
        page.wait_for_selector("#key", state="visible")
        page.fill("#key", "one")
        page.press("#key", "Tab")
        page.wait_for_function("document.getElementById('name').textContent === 'tiny'")
        page.fill("#text", PROMPT)
        page.press("#text", "Enter")
        page.locator(".assistant .faint", has_text="tokens a pass").wait_for(timeout=60_000)
