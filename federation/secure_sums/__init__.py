"""Secure sums (SecAgg+): the server learns only the sum of many devices' vectors of whole numbers.

J. H. Bell, K. A. Bonawitz, A. Gascón, T. Lepoint, M. Raykova: Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead, CCS 2020, eprint 2020/704; after K. Bonawitz, V. Ivanov, B. Kreuter, A. Marcedone, H. B. McMahan, S. Patel,
D. Ramage, A. Segal, K. Seth: Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017.
"""
