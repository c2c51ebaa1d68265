"""Many-to-one push and pull by switches on a virtual clock: links that lose, repeat and delay, ends, and switches."""
