"""The figures of the papers' tables as data, with the settings of the run that reproduces each of them.

from fedwild.results import papers

table = papers.table("fedov/table1").only({"data": "mnist", "partition": "c2"})
for cell in table.cells:
    print(cell.keys["method"], cell.value, cell.waiting or cell.settings)
"""

from fedwild.results.papers.cells import Cell, Curves, Measure, Paper, Table
from fedwild.results.papers.library import papers, table, tables

__all__ = ["Cell", "Curves", "Measure", "Paper", "Table", "papers", "table", "tables"]
