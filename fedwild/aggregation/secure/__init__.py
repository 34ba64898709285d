"""Secure sums: the server learns the sum of the clients' vectors, and no single vector.

Bonawitz et al.: Practical secure aggregation for privacy-preserving machine learning. CCS 2017. These modules are the
mathematics and do no input or output; `engines/secure_jobs.py` is the client's side of the exchange, and
`lifecycle/secure_exchange.py` the server's.
"""
