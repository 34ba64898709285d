"""Pictures of what runs have learnt, as PNG files and as figures.

confusion.py, features.py, masks.py, novel.py   what a picture shows
heat_map.py, sheet.py, drawing.py               how it is drawn
shown_run.py                                    which model of which run
"""
