"""What ``stallproof check``, ``explain`` and ``replay --with-tlc`` are made of."""
