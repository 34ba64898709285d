"""Real sites through Flower: its processes carry letters, and fedwild's own write and answer them.

coordinator.py   a run over sites: gather them, begin, resume, welcome
link.py          the way to the sites: SuperLink, gate, `flwr run`, keys (registrar.py)
processes.py     Flower's programs as children of ours, each under a keeper (keeper.py)
roster.py        who is there: greets nodes, binds names, refuses who does not fit
engine.py        jobs and answers as letters
desk.py          a site: its data, its durable state, its answers
site.py          `fedwild site`: a desk beside Flower's SuperNode
server_app.py, client_app.py   Flower's two ends, thin
"""
