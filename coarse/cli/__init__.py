"""Command line: one file per command, and the app that knows all commands."""
