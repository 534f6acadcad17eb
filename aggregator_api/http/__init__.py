"""What answers over HTTP: the REST API, the operator's pages, and the process that serves both."""
