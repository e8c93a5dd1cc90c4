"""The store: everything that must survive the service, in tables. The only room that speaks SQL."""

from elastrain.service.store.engine import Store, Tx

__all__ = ["Store", "Tx"]
