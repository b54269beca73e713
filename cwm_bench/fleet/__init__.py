"""Several engines behind two gateways: moves, deaths, drains, and who answers, beside a router that is only sticky."""
