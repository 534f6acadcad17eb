"""The operator's pages: server-rendered, kept up to date, without a build step; and Swagger UI."""
