"""What does a datastore know? A page on this machine that answers while one types.

`explorer` says what is asked for as plain values, `server` serves them and the page.
"""

from specds.view.explorer import Explorer
from specds.view.server import serve

__all__ = ["Explorer", "serve"]
