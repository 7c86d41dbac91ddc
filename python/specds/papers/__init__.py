"""Verification methods of papers, for comparison. Imports `specds.verify`."""
