"""What tests of durable workflows need: a recording observer, and a crash at every entry."""
