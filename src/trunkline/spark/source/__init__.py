"""Reading a journal with Spark: the data source, batch and streaming, and the DataFrames of messages and fates."""
