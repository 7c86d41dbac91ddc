"""What a page of HTML holds."""

from html.parser import HTMLParser


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.references, self.cells = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.ids += [named["id"]] if tag == "figure" and "id" in named else []
        if tag in {"script", "link", "img", "iframe"}:
            self.references += [named[name] for name in ("src", "href") if name in named]

    def handle_data(self, data):
        self.cells.append(data)
