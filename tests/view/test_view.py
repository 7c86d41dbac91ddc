"""The page of `specds view`: answers, access control, and display in a browser."""

import http.client
import json
import re
import signal
import socket
import struct
import threading
import time
from contextlib import closing
from statistics import median
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

from browser import browsed
from commands import started
from specds import Datastore, build_datastore
from specds.bench.transcripts import Transcript
from specds.pages import page
from specds.view import Explorer, serve

TEXT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n"


@pytest.fixture(scope="module")
def explorer(tmp_path_factory, demo_tokenizer):
    folder = tmp_path_factory.mktemp("view")
    (folder / "a.txt").write_text(TEXT)
    corpus, path = str(folder / "a.txt"), folder / "a.specds"
    build_datastore(corpus, demo_tokenizer, path)
    return Explorer(Datastore(path), demo_tokenizer)


@pytest.fixture
def served(explorer):
    with serve(explorer) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield server.server_address
        server.shutdown()
        thread.join()


def ask(address, method, path, body=None, **headers):
    with closing(http.client.HTTPConnection(*address, timeout=30)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_text_is_answered_with_its_match_and_all_drafts(served):
    asked = json.dumps({"text": "zz\ndef add(a, b):\n    return", "nodes": 6})
    status, told = ask(served, "POST", "/explore", asked)
    found = json.loads(told)
    assert status == 200
    assert found["match"]["text"].endswith("add(a, b):\n    return")
    assert found["match"]["count"] == 1
    place = found["match"]["passages"][0]
    assert place["before"] + place["match"] + place["after"] == TEXT
    fused = found["trees"]["all sources together"]
    assert len(fused["text"]) <= 6
    assert fused["text"][0] == " a"
    assert set(found["trees"]["datastore"]["sources"]) == {"datastore"}
    assert set(found["trees"]["the text itself"]["sources"]) <= {"context"}
    assert json.loads(ask(served, "POST", "/explore", '{"text": "", "nodes": 3}')[1])["trees"] == {}


def test_page_begins_with_a_document_and_what_is_drafted_there(explorer):
    beginning = explorer.about()["beginning"]
    assert TEXT.startswith(beginning)
    assert len(beginning) > 10
    assert explorer.explore(beginning, 8)["trees"]["datastore"]["text"]


@pytest.fixture
def replayed(explorer, demo_tokenizer, monkeypatch):
    """Give the explorer an answer to replay."""
    texts = "def add", "(a, b):\n    ret"
    prompt, answer = (np.array(demo_tokenizer(text)["input_ids"]) for text in texts)
    monkeypatch.setattr(explorer, "_transcripts", [Transcript("a", prompt, answer)])
    return texts, answer


def test_answer_is_replayed_step_by_step(explorer, replayed):
    texts, answer = replayed
    assert explorer.about()["num_transcripts"] == 1
    shown = explorer.replay(0, 8)
    steps = shown["steps"]
    assert shown["prompt"] == texts[0]
    assert "".join(token for step in steps for token in step["tokens"]) == texts[1]
    assert len(steps) < len(answer)
    for step in steps:
        drafted = [step["tree"]["text"][node] for node in step["path"]]
        assert drafted == step["tokens"][: len(drafted)]
        assert len(step["sources"]) == len(step["tokens"])


def test_a_keystroke_is_answered_at_once(served):
    asked, seconds = json.dumps({"text": "def add(a", "nodes": 6}), []
    with closing(http.client.HTTPConnection(*served, timeout=30)) as connection:
        for _ in range(60):  # the kernel acknowledges the first ones at once
            started = time.perf_counter()
            connection.request("POST", "/explore", asked)
            connection.getresponse().read()
            seconds.append(time.perf_counter() - started)
    assert median(seconds[30:]) < 0.03


def test_typed_text_is_not_stored(explorer):
    def drafted(text):
        trees = explorer.explore(text, 8)["trees"].values()
        return "".join(token for tree in trees for token in tree["text"])

    secret = "my secret is forty two\n" * 4
    assert "forty" in drafted(f"{secret}my secret is"), "the control"
    assert "forty" not in drafted("my secret is")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/etc/passwd", None, 404),
        ("POST", "/explore", "no json", 400),
        ("POST", "/replay", '{"number": 5, "nodes": 3}', 400),
        ("POST", "/explore", '{"text": "a"}', 400),
        ("POST", "/explore", "[1]", 400),
        ("POST", "/other", "{}", 400),
        ("POST", "/explore", '{"text": "a", "nodes": 1e400}', 400),
        ("POST", "/explore", "[" * 100_000, 400),
    ],
)
def test_invalid_request_is_rejected(served, method, path, body, status):
    assert ask(served, method, path, body)[0] == status


def test_malformed_address_is_answered_with_404(served):
    with closing(socket.create_connection(served, timeout=30)) as connection:
        host = f"Host: {served[0]}:{served[1]}"
        connection.sendall(f"GET http://[::1/ HTTP/1.1\r\n{host}\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 404 ")


def test_disconnected_browser_is_not_logged(served, capfd, monkeypatch):
    gone, wait = threading.Event(), Explorer.explore
    monkeypatch.setattr(Explorer, "explore", lambda *asked: gone.wait(30) and wait(*asked))
    with closing(socket.create_connection(served, timeout=30)) as connection:
        # Closed with a reset, so that the first write of the answer fails.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        head = (
            f"POST /explore HTTP/1.1\r\nHost: {served[0]}:{served[1]}\r\nContent-Length: 24\r\n\r\n"
        )
        connection.sendall(f'{head}{{"text": "a", "nodes": 1}}'.encode())
    gone.set()
    assert ask(served, "GET", "/about")[0] == 200
    for _ in range(100):
        if threading.active_count() <= 2:
            break
        time.sleep(0.05)
    assert capfd.readouterr().err == ""


def test_long_text_is_tokenized_at_its_end(served):
    asked = json.dumps({"text": "x y" * 300_000 + TEXT, "nodes": 6})
    status, told = ask(served, "POST", "/explore", asked)
    assert status == 200
    assert 0 < json.loads(told)["num_tokens"] <= 2048


def test_requests_of_other_hosts_are_rejected(served):
    assert served[0] == "127.0.0.1"
    assert ask(served, "GET", "/about")[0] == 200
    assert ask(served, "GET", "/about", Host=f"localhost:{served[1]}")[0] == 200
    assert ask(served, "GET", "/about", Host="example.org")[0] == 403
    own, other = f"http://{served[0]}:{served[1]}", "http://example.org"
    asked = '{"text": "a", "nodes": 1}'
    assert ask(served, "POST", "/explore", asked, Origin=own)[0] == 200
    assert ask(served, "POST", "/explore", asked, Origin=other)[0] == 403
    assert ask(served, "POST", "/explore", asked, Origin="null")[0] == 403


def test_page_needs_no_other_files():
    text = page("specds.view", "specds view")
    assert "{{" not in text
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:)?//", text)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1300])
def test_browser_shows_text_and_answer_within_its_width(served, explorer, replayed, width, scheme):
    address = f"http://127.0.0.1:{served[1]}/#{quote(TEXT[:29])}"
    about = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    with browsed(address, **about) as page:
        page.wait_for_selector("#trees .token")
        page.wait_for_selector("#step-tree .token")
        if width == 1300:  # without scrolling, with recorded answers too
            page.set_viewport_size({"width": width, "height": 800})
            page.fill("#text", "")
            page.type("#text", TEXT[:29])
            page.wait_for_selector("#trees .token")
            for part in ("#match pre", "#trees .token"):
                box = page.locator(part).first.bounding_box()
                assert box["y"] + box["height"] < 800, part
            page.click("#to-replay")
        page.fill("#text", TEXT[:6])
        page.wait_for_selector("#words")
        assert page.inner_text("#words").startswith('" ad" is continued as " add" (1)')
        page.fill("#text", TEXT[:29])
        page.wait_for_selector("#words", state="detached")
        assert "a.txt" in page.inner_text("#match")
        assert "all sources together" in page.inner_text("#trees")
        page.fill("#step", page.get_attribute("#step", "max"))
        assert "tokens" in page.inner_text("#rate")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (shown == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_command_serves_until_it_is_interrupted(explorer):
    path = explorer.about()["path"]
    process = started("view", path, "--tokenizer", "demo", text=True)
    address = urlsplit(process.stdout.readline().strip())
    assert json.loads(ask((address.hostname, address.port), "GET", "/about")[1])["path"] == path
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (0, "", "")
