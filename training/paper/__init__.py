"""The experiments of the paper: configurations, runs, tables, claims."""
