"""A naive twin of `EngineDrafter`: plain sessions, and the texts of all requests beside them."""

PATIENCE = 64


class CameBackError(Exception):
    """A request goes on whose text is remembered: a plain session has ended with that."""


class Request:
    def __init__(self, drafter, text):
        self.session, self.text, self.before = drafter.session(text), list(text), 0
        self.absent, self.drafted, self.is_remembered = 0, 0, False

    def remember(self):
        if not self.is_remembered:
            self.session.finish()
        self.is_remembered = True

    def goes_on_with(self, context):
        return context is not None and list(context[: len(self.text)]) == self.text

    def was_taken_back_for(self, context):
        return self.before > 0 and list(context[: self.before]) == self.text[: self.before]


class EngineTwin:
    """Rows of whole contexts over sessions of a plain drafter."""

    def __init__(self, drafter, vocab_size):
        self.drafter, self.vocab_size = drafter, vocab_size
        self.rows, self.absent, self.num_opened = [], [], 0

    def sync(self, contexts):
        old, self.rows = self.rows, [None] * len(contexts)
        for row, context in enumerate(contexts):
            if row < len(old) and old[row] and old[row].goes_on_with(context):
                self.rows[row], old[row] = old[row], None
        for row, context in enumerate(contexts):
            known = filter(None, [*old, *self.absent])
            found = [request for request in known if request.goes_on_with(context)]
            if self.rows[row] is None and found:
                self.rows[row] = best = max(found, key=lambda request: len(request.text))
                if best.is_remembered:
                    raise CameBackError
                old = [None if request is best else request for request in old]
                self.absent = [request for request in self.absent if request is not best]
        for row, context in enumerate(contexts):
            if self.rows[row] is None and context:
                lost = [r for r in old if r and r.was_taken_back_for(context)]
                old = [None if request in lost[:1] else request for request in old]
        for request in self.absent:
            request.absent += 1
        self.absent += [request for request in old if request]
        for request in self.absent:
            if request.absent >= PATIENCE:
                request.remember()
        self.absent = [request for request in self.absent if request.absent < PATIENCE]
        if any(context and not row for row, context in zip(self.rows, contexts, strict=True)):
            for request in self.absent:
                request.remember()
        for row, context in enumerate(contexts):
            self._observe(row, context)

    def _observe(self, row, context):
        request = self.rows[row]
        if not context or (request is None and max(context) >= self.vocab_size):
            return
        if request is None:
            self.rows[row] = Request(self.drafter, context)
            self.num_opened += 1
            return
        news = context[len(request.text) :]
        request.absent, request.before = 0, len(request.text)
        if news and max(news) < self.vocab_size:
            request.session.observe(news, request.drafted)
            request.text = list(context)
        request.drafted = 0

    def draft(self, max_nodes, is_chain):
        """The draft of each row; None where it has no session."""
        drafts = []
        for request in self.rows:
            tree = request and request.session.draft(max_nodes, is_chain=is_chain)
            drafts.append(tree)
            if request:
                request.drafted = len(tree)
        return drafts
