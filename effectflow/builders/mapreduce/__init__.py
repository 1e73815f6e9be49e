"""Map-reduce: many items, each mapped in a durable step, and reduced to one value."""
