"""The command line: one file per command, and the app that knows them all."""
