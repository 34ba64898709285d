"""Progress and results on a terminal."""
