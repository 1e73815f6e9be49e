"""The pages that show runs in a browser come here; there are none yet."""
