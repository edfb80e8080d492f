"""What the model is: its trained form, its served form, and the files between."""
