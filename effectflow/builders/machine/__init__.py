"""State machines: transitions with guards and actions, as plain values and as durable runs."""
