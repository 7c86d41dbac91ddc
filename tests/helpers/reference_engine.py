"""Reference implementation of `EngineDrafter`: plain sessions with copies of their texts."""

MAX_ABSENT_STEPS = 64


def sync(drafter, *contexts):
    """Pass rows to an `EngineDrafter`, whose requests are named by their index."""
    drafter.sync(contexts, [str(row) for row in range(len(contexts))])


class ReturnedError(Exception):
    """A stored request continues, but its plain session has ended."""


class ReferenceRequest:
    def __init__(self, drafter, text, tenant):
        self.session = drafter.session(text, tenant)
        self.text, self.previous_len = list(text), 0
        self.num_absent, self.num_drafted, self.is_stored = 0, 0, False

    def store(self):
        if not self.is_stored:
            self.session.finish()
        self.is_stored = True

    def continues(self, context):
        return list(context[: len(self.text)]) == self.text

    def is_rolled_back(self, context):
        before = self.text[: self.previous_len]
        return self.previous_len > 0 and list(context[: self.previous_len]) == before


class ReferenceEngineDrafter:
    """Rows of whole contexts over the sessions of a plain drafter."""

    def __init__(self, drafter, vocab_size, *, is_isolated):
        self.drafter, self.vocab_size, self.is_isolated = drafter, vocab_size, is_isolated
        self.rows, self.absent, self.num_opened = {}, {}, 0

    def sync(self, contexts):
        """Take the contexts of the rows by the names of their requests."""
        present = {name: request for name, request in self.rows.items() if request}
        known, self.rows = {**self.absent, **present}, dict.fromkeys(contexts)
        for name, context in contexts.items():
            request = known.get(name)
            if not context or request is None:
                continue
            del known[name]
            self.absent.pop(name, None)
            if request.continues(context):
                if request.is_stored:
                    raise ReturnedError
                self.rows[name] = request
            elif not request.is_rolled_back(context):
                request.store()
        for request in self.absent.values():
            request.num_absent += 1
        self.absent = known
        begins = any(context and not self.rows[name] for name, context in contexts.items())
        for name, request in [*self.absent.items()]:
            is_over = request.num_absent >= MAX_ABSENT_STEPS
            if is_over or begins:
                request.store()
            if is_over:
                del self.absent[name]
        for name, context in contexts.items():
            self._observe(name, context)

    def _observe(self, name, context):
        request = self.rows[name]
        if not context or (request is None and max(context) >= self.vocab_size):
            return
        if request is None:
            tenant = str(self.num_opened) if self.is_isolated else ""
            self.rows[name] = ReferenceRequest(self.drafter, context, tenant)
            self.num_opened += 1
            return
        new = context[len(request.text) :]
        request.num_absent, request.previous_len = 0, len(request.text)
        if new and max(new) < self.vocab_size:
            request.session.observe(new, request.num_drafted)
            request.text = list(context)
        request.num_drafted = 0

    def draft(self, max_nodes, is_chain):
        """The draft of each row; None where it has no session."""
        drafts = []
        for request in self.rows.values():
            tree = request and request.session.draft(max_nodes, is_chain=is_chain)
            drafts.append(tree)
            if request:
                request.num_drafted = len(tree)
        return drafts
