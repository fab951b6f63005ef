"""What people see of a hub: what is wrong, and what to do next."""
