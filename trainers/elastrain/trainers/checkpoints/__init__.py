"""Parts from the owners, a manifest last, and the way back."""
