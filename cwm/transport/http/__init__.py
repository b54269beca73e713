"""What every face stands on: the HTTP server, middleware, errors."""
