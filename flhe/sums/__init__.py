"""A secure sum: what is contributed, collected and opened, without Flower and without a disk."""
