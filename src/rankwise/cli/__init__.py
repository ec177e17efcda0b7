"""One file per command; the only room that reads argv, prints or exits."""
