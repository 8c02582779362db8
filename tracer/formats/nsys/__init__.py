"""What does a report of Nsight Systems say, exported to SQLite or to Parquet and Arrow tables?"""
