"""Pictures of what runs have learnt, as plain values and as PNG, SVG or PDF files.

confusion.py, features.py, partition.py, exhibits.py   figures, drawn with matplotlib (extra `plots`)
contact_sheet.py, novel.py                           contact sheets of images, drawn with Pillow
heat_map.py, sheet.py, drawing.py                    how they are drawn and written
shown_run.py                                         which model of which run a picture shows
"""
