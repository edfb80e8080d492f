"""What embeds the rows: this process, or a running service."""
