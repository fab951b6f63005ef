"""A Spark session: the Java it runs on, its class archive, and its temporary files."""
