"""What is sent to them: texts, closed and open loops, and the wait for an idle system."""
