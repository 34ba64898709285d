"""A hostile trial of fedwild: damaged files, kills, invalid settings and messages, real sites under attack.

Every part is a module with a function `run(folder, quick)`, which works in `folder` and returns a `Tally`.
"""
