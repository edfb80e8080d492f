"""Results as people read them: figures, targets, the Markdown page and the plot."""
