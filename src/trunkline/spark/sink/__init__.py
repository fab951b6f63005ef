"""Writing rows to a bus with Spark: the writers on the driver, and the task that publishes one partition."""
