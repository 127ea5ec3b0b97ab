"""Transition relations: what the scheduler, the engine, the device and connectors do."""
