"""Scripts that hold the project's claims against runs; they import coarse, never the reverse."""
