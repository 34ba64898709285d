"""The command line: a file for each group of commands.

app.py        all commands; errors as sentences
options.py    what commands share: options, parsing of numbers, display of a run and its result
runs.py       run, resume, welcome
models.py     evaluate, predict, name
data.py, show.py, listing.py, report.py, compare.py, reproduce.py, site.py, sites.py, track.py
"""

from fedwild.cli.app import complain, main
