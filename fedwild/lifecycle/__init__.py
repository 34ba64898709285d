"""The life of a federation: start, rounds, resume, predict, name discovered classes, welcome newcomers."""
