"""What benchmarks share: servers, clients, data, figures."""
