"""What `penstock report` makes its page of."""
