"""Files that runs write and read: records, lines of results, and the locks of both."""
