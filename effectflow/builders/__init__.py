"""Ways to build a workflow from other things than code: machines, graphs, map-reduce jobs, iterations."""
