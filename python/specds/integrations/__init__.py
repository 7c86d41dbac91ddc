"""Adapters for serving engines, one file each, over `specds.EngineDrafter`; see docs/engines."""
