"""Writers: the final output, made from the parts in one pass, the same bytes however the parts came about."""
