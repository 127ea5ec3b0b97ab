"""What is claimed, and nothing else. No module here imports a proof."""
