"""Reports of finished runs: report, comparison, analyses, and their figures."""
