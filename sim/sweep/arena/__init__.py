"""Tables of results as build products: declared in `experiments/`, run cell by cell, rendered from small summaries."""
