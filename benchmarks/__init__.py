"""Measurements on one machine; never imported by the product.

``python -m benchmarks`` (`make bench`) sets the service beside other servers and libraries;
``python -m benchmarks.turns`` compares two variants of the service; ``benchmarks.studies`` answers
single questions. ``systems`` are started, ``load`` is sent to them, ``report`` tells what was seen,
``peers`` lists what other projects need, and ``journal`` has dated notes.
"""
