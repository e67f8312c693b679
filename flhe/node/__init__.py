"""What one site keeps: its store, its marks, its policy, its audit log."""
