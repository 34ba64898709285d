"""Real sites over Flower: Flower's processes transport messages, fedwild's processes write and answer them.

coordinator.py   a run over sites: wait for them, start, resume (welcome.py: welcome one more)
superlink.py     the connection to the sites: SuperLink, proxy.py, `flwr run`, keys (registration.py)
processes.py     Flower's programs as child processes, each under supervisor.py
transport.py     sends envelopes (envelope.py) to nodes, over Flower's Grid (grid.py, records.py)
roster.py        the connected sites: greets nodes, binds names, rejects sites that do not fit
engine.py        jobs and answers as envelopes
site_server.py   one site: its data, its durable state, its answers (redaction.py: what error texts may say)
policy.py        what a site allows; review.py checks requests (requests.py) against it, permits.py asks the operator
audit.py         the record of all that a site was asked and sent (audit_check.py: its verification)
site.py          `fedwild site`: a site server next to Flower's SuperNode
app.py, server_app.py, client_app.py   the app that Flower runs
"""
