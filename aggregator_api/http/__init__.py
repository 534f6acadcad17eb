"""The HTTP side: the REST API, the operator's pages, and the process that serves both."""
