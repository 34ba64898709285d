"""Tables of results: printed on a terminal, or written as HTML, CSV, LaTeX or Markdown."""
