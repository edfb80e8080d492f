"""What is compared: the paper's tables and figures as configurations, and budgets of runs."""
