"""Datastores of documents that a test writes down."""

from specds.build import DatastoreBuilder


def build(path, documents, *, vocab_size=4, separator=4, **options):
    with DatastoreBuilder(
        path, vocab_size=vocab_size, separator=separator, overwrite=True, **options
    ) as builder:
        flat = [token for document in documents for token in document]
        builder.add_documents(flat, [len(document) for document in documents])
        return builder.finish()
