"""What every reproduction shares: its parts, the job loop, tables and pages."""
