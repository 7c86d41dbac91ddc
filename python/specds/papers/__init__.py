"""What papers do otherwise than this package, to compare with. Imports `specds.verify`."""
