"""Readers: each gives the rows of one kind of input as batches, from any row on, without holding more than a few of them."""
