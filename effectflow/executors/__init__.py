"""Where work runs. Today that is the event loop of the caller; pools and clusters come here."""
