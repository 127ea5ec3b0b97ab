"""What ``stallproof check`` and ``stallproof explain`` are made of: TLC, configurations, equality, stories."""
