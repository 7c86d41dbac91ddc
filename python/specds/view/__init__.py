"""A local web page that shows a datastore's matches and drafts during typing.

`explorer` computes the answers, `server` serves them and the page.
"""

from specds.view.explorer import Explorer
from specds.view.server import serve

__all__ = ["Explorer", "serve"]
