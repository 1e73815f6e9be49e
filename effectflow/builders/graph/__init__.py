"""State graphs: nodes that change a state, and edges that choose the next node."""
